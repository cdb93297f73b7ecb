// The whole engine on a card that the host plays: what is uploaded, swapped and downloaded is where it is read.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <functional>

#include "engine/engine.h"
#include "engine/flight_recorder.h"
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
    {"eager", [](EngineConfig& config) { config.enforce_eager = true; }},
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
  config.max_num_seqs = 8;  // every size up to it is recorded at start, which takes a played card a while
  return config;
}

// Steps of the past whose forward pass was replayed.
int64_t num_replayed(LLM& llm) {
  const boost::json::object steps = llm.engine().flight_recorder().steps(-1);
  int64_t count = 0;
  for (const boost::json::value& step : steps.at("steps").as_array()) count += step.at("replayed").as_bool() ? 1 : 0;
  return count;
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

// A context that outgrows a recording's goes to the next; steps of more sequences than the largest are not recorded.
TEST(EngineOnPlayedCard, StepsThatOutgrowARecordingGoOn) {
  // The tiny model's shape, but for longer contexts.
  std::ifstream file(runner::tiny_path("llama") + "/config.json");
  boost::json::object shape = boost::json::parse(file).as_object();
  shape["max_position_embeddings"] = 2048;
  const std::string folder = testing::TempDir() + "longer_llama";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << boost::json::serialize(shape);
  std::vector<TokenId> longer(500);
  for (size_t i = 0; i < longer.size(); ++i) longer[i] = static_cast<TokenId>(3 + i % 50);
  const std::vector<Prompt> prompts = {Prompt(longer), Prompt(std::vector<TokenId>{5, 6, 7}),
                                       Prompt(std::vector<TokenId>{9, 8})};
  const SamplingParams params{.temperature = 0, .max_tokens = 20, .ignore_eos = true};
  std::vector<std::vector<std::vector<TokenId>>> answers;
  std::vector<int64_t> replayed;
  for (const int largest : {0, 8, 2}) {
    EngineConfig config = on_card("llama");
    config.model = folder;
    config.load_format = "dummy";
    config.num_gpu_blocks_override = 256;
    config.enforce_eager = largest == 0;
    config.max_cudagraph_capture_size = largest;
    auto llm = LLM::create(config);
    ASSERT_TRUE(llm.ok()) << llm.status().message();
    auto outputs = (*llm)->generate(prompts, params, {.progress = false});
    ASSERT_TRUE(outputs.ok()) << outputs.status().message();
    for (const RequestOutput& output : *outputs) EXPECT_EQ(output.token_ids.size(), 20u);
    answers.emplace_back();
    for (const RequestOutput& output : *outputs) answers.back().push_back(output.token_ids);
    replayed.push_back(num_replayed(**llm));
  }
  EXPECT_EQ(answers[0], answers[1]);
  EXPECT_EQ(answers[0], answers[2]);
  EXPECT_EQ(replayed[0], 0);
  EXPECT_EQ(replayed[1], 18);  // of 19: the first of a longer context is computed, and recorded
  EXPECT_EQ(replayed[2], 0);
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
