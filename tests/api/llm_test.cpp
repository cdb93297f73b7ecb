// The C++ API over real files: the tiny checkpoints of the reference.
#include "quire/llm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "engine/engine.h"
#include "tests/runner/tiny_model.h"

namespace quire {
namespace {

using runner::GoldenCase;
using runner::read_golden;
using runner::tiny_path;

EngineConfig tiny_config(const std::string& name) {
  return {.model = tiny_path(name), .skip_tokenizer_init = true, .kv_cache_memory_bytes = 4 << 20};
}

// Steps up to the first whose two best logits are too close to call.
size_t clear_steps(const GoldenCase& one) {
  size_t steps = 0;
  while (steps < one.greedy.size() && one.greedy_margin[steps] > 0.01) ++steps;
  return steps;
}

class LlmTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto made = LLM::create(tiny_config(GetParam()));
    ASSERT_TRUE(made.ok()) << made.status().message();
    llm_ = std::move(*made);
    cases_ = read_golden(GetParam());
  }
  std::unique_ptr<LLM> llm_;
  std::vector<GoldenCase> cases_;
};

TEST_P(LlmTest, AllPromptsAtOnceAreAnsweredAsTheReferenceDoes) {
  std::vector<Prompt> prompts;
  for (const GoldenCase& one : cases_) prompts.emplace_back(one.prompt);
  const SamplingParams params{.temperature = 0,
                              .max_tokens = static_cast<int32_t>(cases_[0].greedy.size()),
                              .ignore_eos = true,
                              .logprobs = 0,
                              .prompt_logprobs = 0};
  auto outputs = llm_->generate(prompts, params, {.progress = false});
  ASSERT_TRUE(outputs.ok()) << outputs.status().message();
  for (size_t i = 0; i < cases_.size(); ++i) {
    const RequestOutput& output = (*outputs)[i];
    EXPECT_EQ(output.finish_reason, FinishReason::kLength);
    ASSERT_EQ(output.token_ids.size(), cases_[i].greedy.size());
    for (size_t step = 0; step < clear_steps(cases_[i]); ++step) {
      EXPECT_EQ(output.token_ids[step], cases_[i].greedy[step]) << "case " << i << " step " << step;
    }
    ASSERT_EQ(output.prompt_logprobs.size(), cases_[i].prompt_logprobs.size());
    for (size_t p = 0; p < output.prompt_logprobs.size(); ++p) {
      EXPECT_NEAR(output.prompt_logprobs[p].chosen.logprob, cases_[i].prompt_logprobs[p], 1e-3);
    }
    EXPECT_EQ(output.logprobs.size(), output.token_ids.size());
  }
}

// Log-probabilities of prompts that are computed in pieces and preempted in between are those of one that is not.
TEST(LlmPrompts, AreScoredAsAloneAlsoWhereTheyArePreempted) {
  EngineConfig config = tiny_config("llama");
  config.num_gpu_blocks_override = 32;
  config.max_num_batched_tokens = 16;
  config.enable_prefix_caching = false;
  config.watermark = 0;
  auto llm = LLM::create(config);
  ASSERT_TRUE(llm.ok()) << llm.status().message();
  const auto prompts_of = [](int count, int length, int first) {
    std::vector<Prompt> prompts;
    for (int i = first; i < first + count; ++i) {
      std::vector<TokenId> tokens;
      for (int t = 0; t < length; ++t) tokens.push_back(3 + (t * 37 + i * 101) % 500);
      prompts.emplace_back(std::move(tokens));
    }
    return prompts;
  };
  const std::vector<Prompt> scored = prompts_of(3, 200, 0);
  const SamplingParams scores{.temperature = 0, .max_tokens = 2, .ignore_eos = true, .prompt_logprobs = 0};
  const auto logprobs_of = [](const RequestOutput& output) {
    std::vector<float> logprobs;
    for (const PositionLogprobs& one : output.prompt_logprobs) logprobs.push_back(one.chosen.logprob);
    return logprobs;
  };
  std::vector<std::vector<float>> alone;
  for (const Prompt& prompt : scored) {
    auto output = (*llm)->generate({prompt}, scores, {.progress = false});
    ASSERT_TRUE(output.ok()) << output.status().message();
    alone.push_back(logprobs_of((*output)[0]));
    ASSERT_EQ(alone.back().size(), 199u);
  }
  // Others that need more and more blocks, until they take those of the prompts under way.
  std::atomic<bool> over{false};
  std::vector<std::thread> others;
  for (int thread = 0; thread < 6; ++thread) {
    others.emplace_back([&, thread] {
      for (int32_t round = 0; !over; ++round) {
        const SamplingParams long_answer{
            .temperature = 0, .max_tokens = 50 + 40 * ((thread + round) % 6), .ignore_eos = true};
        EXPECT_TRUE((*llm)->generate(prompts_of(1, 8, 10 + thread), long_answer, {.progress = false}).ok());
      }
    });
  }
  for (int round = 0; round < 12; ++round) {
    auto outputs = (*llm)->generate(scored, scores, {.progress = false});
    if (!outputs.ok()) ADD_FAILURE() << outputs.status().message();
    for (size_t i = 0; outputs.ok() && i < scored.size(); ++i) {
      EXPECT_EQ(logprobs_of((*outputs)[i]), alone[i]) << i << " in round " << round;
    }
  }
  over = true;
  for (std::thread& thread : others) thread.join();
  EXPECT_GT((*llm)->engine().stats().num_preemptions, 0);
}

TEST_P(LlmTest, AnAsynchronousRequestCallsBackForItsTokensUntilItsEnd) {
  const GoldenCase& one = cases_.back();
  std::vector<TokenId> tokens;
  FinishReason finish = FinishReason::kNone;
  auto generation = llm_->generate_async(
      one.prompt, {.temperature = 0, .max_tokens = 24, .ignore_eos = true}, [&](const RequestUpdate& update) {
        tokens.insert(tokens.end(), update.token_ids.begin(), update.token_ids.end());
        finish = update.finish_reason;
      });
  ASSERT_TRUE(generation.ok()) << generation.status().message();
  (*generation)->wait();
  EXPECT_EQ(finish, FinishReason::kLength);
  auto whole =
      llm_->generate({one.prompt}, {.temperature = 0, .max_tokens = 24, .ignore_eos = true}, {.progress = false});
  EXPECT_EQ(tokens, (*whole)[0].token_ids);
}

INSTANTIATE_TEST_SUITE_P(Tiny, LlmTest,
                         testing::Values("llama", "llama3_rope", "llama_linear", "llama_yarn", "mistral_swa"),
                         [](const auto& test) { return test.param; });

TEST(Llm, ACancelledRequestCallsBackNoMore) {
  auto llm = LLM::create(tiny_config("llama"));
  ASSERT_TRUE(llm.ok());
  std::atomic<int> calls{0};
  auto generation = (*llm)->generate_async(std::vector<TokenId>{5, 6, 7}, {.max_tokens = 400, .ignore_eos = true},
                                           [&](const RequestUpdate&) { ++calls; });
  ASSERT_TRUE(generation.ok());
  (*generation)->cancel();
  const int after_cancel = calls;
  (*generation)->wait();
  auto other = (*llm)->generate({std::vector<TokenId>{5}}, {.max_tokens = 8, .ignore_eos = true}, {.progress = false});
  EXPECT_EQ((*other)[0].token_ids.size(), 8u);
  EXPECT_EQ(calls, after_cancel);
}

TEST(Llm, ARequestMayBeCancelledFromItsOwnCallback) {
  auto llm = LLM::create(tiny_config("llama"));
  ASSERT_TRUE(llm.ok());
  std::atomic<int> calls{0};
  std::atomic<Generation*> self{nullptr};
  auto generation = (*llm)->generate_async(std::vector<TokenId>{5, 6, 7}, {.max_tokens = 400, .ignore_eos = true},
                                           [&](const RequestUpdate&) {
                                             ++calls;
                                             while (self.load() == nullptr) {
                                             }
                                             self.load()->cancel();
                                           });
  ASSERT_TRUE(generation.ok());
  self = generation->get();
  (*generation)->wait();
  EXPECT_EQ(calls, 1);
}

TEST(Llm, WhatIsWrongIsSaidInWords) {
  EXPECT_THAT(LLM::create({.model = "/nonexistent/model.gguf"}).status().message(), testing::HasSubstr("nonexistent"));
  auto llm = LLM::create(tiny_config("llama"));
  ASSERT_TRUE(llm.ok());
  EXPECT_THAT((*llm)->generate({"text"}, {}, {.progress = false}).status().message(), testing::HasSubstr("tokenizer"));
  EXPECT_EQ((*llm)->generate({std::vector<TokenId>{99999}}, {}, {.progress = false}).status().param(), "prompt");
  EXPECT_EQ((*llm)->generate({std::vector<TokenId>{5}}, {.top_p = 0}, {.progress = false}).status().param(), "top_p");
}

}  // namespace
}  // namespace quire
