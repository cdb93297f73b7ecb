// The whole engine on a card that the host plays: what is uploaded, swapped and downloaded is where it is read.
#include <gtest/gtest.h>

#include <functional>

#include "engine/engine.h"
#include "quire/llm.h"
#include "tests/runner/tiny_model.h"

namespace quire {
namespace {

struct Variant {
  const char* name;
  std::function<void(EngineConfig&)> set;
  bool preempts = false;  // must have happened, or the test shows nothing
  bool swaps = false;
};

// Room for the largest request alone, so that the others are in each other's way.
void tight(EngineConfig& config) {
  config.block_size = 4;
  config.num_gpu_blocks_override = 28;
  config.watermark = 0;
}

const Variant kVariants[] = {
    {"together", [](EngineConfig&) {}},
    {"chunks_of_7_and_async",
     [](EngineConfig& config) {
       config.max_num_batched_tokens = 7;
       config.async_scheduling = true;
     }},
    {"swap",
     [](EngineConfig& config) {
       tight(config);
       config.preemption_mode = "swap";
       config.swap_space = 0.01;
     },
     true, true},
    {"swap_to_a_file",
     [](EngineConfig& config) {
       tight(config);
       config.preemption_mode = "swap";
       config.swap_space = 0.01;
       config.swap_file = testing::TempDir();
     },
     true, true},
    {"recompute",
     [](EngineConfig& config) {
       tight(config);
       config.preemption_mode = "recompute";
     },
     true},
};

EngineConfig on_card(const std::string& family) {
  EngineConfig config{.model = runner::tiny_path(family), .skip_tokenizer_init = true, .num_gpu_blocks_override = 64};
  config.device = "cuda";
  config.threads = 2;
  return config;
}

// Greedy answers as far as the reference's choice was clear.
TEST(EngineOnPlayedCard, AnswersAsTheReferenceDoesHoweverItGoesAboutIt) {
  const std::vector<runner::GoldenCase> cases = runner::read_golden("llama");
  std::vector<Prompt> prompts;
  for (const runner::GoldenCase& one : cases) prompts.emplace_back(one.prompt);
  const SamplingParams params{.temperature = 0, .max_tokens = 24, .ignore_eos = true, .prompt_logprobs = 0};
  for (const Variant& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    EngineConfig config = on_card("llama");
    variant.set(config);
    auto llm = LLM::create(config);
    ASSERT_TRUE(llm.ok()) << llm.status().message();
    auto outputs = (*llm)->generate(prompts, params, {.progress = false});
    ASSERT_TRUE(outputs.ok()) << outputs.status().message();
    for (size_t i = 0; i < cases.size(); ++i) {
      const RequestOutput& output = (*outputs)[i];
      EXPECT_TRUE(output.error.ok()) << output.error.message();
      ASSERT_EQ(output.token_ids.size(), cases[i].greedy.size());
      for (size_t step = 0; step < cases[i].greedy.size() && cases[i].greedy_margin[step] > 0.01; ++step) {
        ASSERT_EQ(output.token_ids[step], cases[i].greedy[step]) << "case " << i << " step " << step;
      }
      ASSERT_EQ(output.prompt_logprobs.size(), cases[i].prompt_logprobs.size());
      for (size_t p = 0; p < output.prompt_logprobs.size(); ++p) {
        EXPECT_NEAR(output.prompt_logprobs[p].chosen.logprob, cases[i].prompt_logprobs[p], 1e-3);
      }
    }
    const engine::EngineStats stats = (*llm)->engine().stats();
    if (variant.preempts) {
      EXPECT_GT(stats.num_preemptions, 0);
    }
    if (variant.swaps) {
      EXPECT_GT(stats.num_swaps, 0);
    }
  }
}

// Two kinds of layers with block tables of their own, samples that share and then copy blocks, a warm prefix cache.
TEST(EngineOnPlayedCard, SamplesSharePromptBlocksAndFindThemAgain) {
  const std::vector<runner::GoldenCase> cases = runner::read_golden("gemma3");
  auto llm = LLM::create(on_card("gemma3"));
  ASSERT_TRUE(llm.ok()) << llm.status().message();
  const SamplingParams params{.n = 3, .temperature = 0.8f, .seed = 5, .max_tokens = 6, .ignore_eos = true};
  std::vector<std::vector<std::vector<TokenId>>> rounds;
  for (int round = 0; round < 2; ++round) {
    auto outputs = (*llm)->generate({cases[2].prompt}, params, {.progress = false});
    ASSERT_TRUE(outputs.ok()) << outputs.status().message();
    std::vector<std::vector<TokenId>>& answers = rounds.emplace_back();
    for (const CompletionOutput& output : outputs->front().outputs) answers.push_back(output.token_ids);
    ASSERT_EQ(answers.size(), 3u);
    if (round == 1) {
      EXPECT_GT(outputs->front().num_cached_tokens, 0);
    }
  }
  EXPECT_EQ(rounds[0], rounds[1]);
}

TEST(EngineOnPlayedCard, SaysWhichDeviceItUsesAndRefusesWhatACardHasNot) {
  auto llm = LLM::create(on_card("llama"));
  ASSERT_TRUE(llm.ok()) << llm.status().message();
  EXPECT_TRUE((*llm)->engine().device_description().starts_with("cuda:0, ")) << (*llm)->engine().device_description();

  const auto refused = [](const std::function<void(EngineConfig&)>& set) {
    EngineConfig config = on_card("llama");
    set(config);
    const auto made = LLM::create(config);
    EXPECT_FALSE(made.ok());
    return made.ok() ? std::string() : made.status().message();
  };
  EXPECT_NE(refused([](EngineConfig& c) { c.device = "cuda:7"; }).find("no card 7"), std::string::npos);
  EXPECT_NE(refused([](EngineConfig& c) { c.device = "gpu"; }).find("auto, cpu, cuda"), std::string::npos);
  EXPECT_NE(refused([](EngineConfig& c) { c.isa = "avx2"; }).find("--device cpu"), std::string::npos);
  EXPECT_NE(refused([](EngineConfig& c) { c.quantization = "int8"; }).find("not supported on a card"),
            std::string::npos);
}

}  // namespace
}  // namespace quire
