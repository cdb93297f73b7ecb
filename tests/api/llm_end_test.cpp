// The end of an LLM while requests are under way, and batches beyond its bounds.
#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "quire/llm.h"
#include "tests/engine/fake_executor.h"
#include "tests/suites/chosen_executor.h"
#include "text/tokenizer.h"

namespace quire {
namespace {

using engine::expected_answer;
using engine::FakeExecutor;
using testing::HasSubstr;
using testing::SizeIs;

std::string file_contents(const std::string& name) {
  std::ifstream file(std::string(QUIRE_TEST_DATA) + "/tokenizers/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  std::stringstream contents;
  contents << file.rdbuf();
  return contents.str();
}

std::unique_ptr<LLM> make_llm(EngineConfig config, std::unique_ptr<FakeExecutor> executor,
                              Drive drive = Drive::kOwnThread, TextSource text = {}) {
  auto engine =
      engine::Engine::create(std::move(config), std::move(text), suites::chosen(std::move(executor)), nullptr, drive);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? std::make_unique<LLM>(std::move(*engine)) : nullptr;
}

// The end token of a tokenizer's files ends answers, whatever the model's own configuration says.
TEST(LlmEnds, TheTokenizersEndTokenEndsAnAnswer) {
  TextSource text;
  text.tokenizer_json = file_contents("small_bpe.json");
  const auto answer = [&](bool ignore_eos) {
    const auto llm = make_llm({}, std::make_unique<FakeExecutor>(), Drive::kOwnThread, text);
    auto outputs = llm->generate({std::vector<TokenId>{5, 6, 7}}, {.max_tokens = 12, .ignore_eos = ignore_eos},
                                 {.progress = false});
    EXPECT_TRUE(outputs.ok()) << outputs.status().message();
    return outputs->front();
  };
  const RequestOutput whole = answer(false);
  EXPECT_EQ(whole.finish_reason, FinishReason::kLength);
  ASSERT_EQ(whole.token_ids.size(), 12u);
  const auto tokenizer = text::Tokenizer::from_source(text);
  ASSERT_TRUE(tokenizer.ok());
  const auto end = (*tokenizer)->id_to_token(whole.token_ids[4]);
  ASSERT_TRUE(end);
  text.eos_token = *end;
  const RequestOutput ended = answer(false);
  EXPECT_EQ(ended.finish_reason, FinishReason::kStop);
  EXPECT_EQ(ended.token_ids.back(), whole.token_ids[4]);
  EXPECT_LE(ended.token_ids.size(), 5u);
  EXPECT_EQ(answer(true).token_ids, whole.token_ids);
}

// ---- the end ----

// Kinds whose text of a token depends on the tokens before it: the tokenizer is asked at every token, and at the end.
class LlmEnd : public testing::TestWithParam<std::string> {
 protected:
  static TextSource source() {
    TextSource text;
    if (GetParam().ends_with(".json")) {
      text.tokenizer_json = file_contents(GetParam());
    } else {
      text.sentencepiece_model = file_contents(GetParam());
    }
    return text;
  }
};

TEST_P(LlmEnd, HandsOutTheEndsOfAllRequestsUnderWayBeforeItsTokenizerGoes) {
  const TextSource text = source();
  for (int cycle = 0; cycle < 50; ++cycle) {
    auto executor = std::make_unique<FakeExecutor>();
    auto llm = make_llm({.async_scheduling = cycle % 2 == 1}, std::move(executor), Drive::kOwnThread, text);
    ASSERT_NE(llm, nullptr);
    std::atomic<int> begun{0};
    std::atomic<int> ended{0};
    std::vector<std::unique_ptr<Generation>> running;
    for (TokenId i = 0; i < 4; ++i) {
      auto generation = llm->generate_async(std::vector<TokenId>{20 + i, 30 + cycle}, {.max_tokens = 400},
                                            [&](const RequestUpdate& update) {
                                              ++begun;
                                              if (update.finish_reason != FinishReason::kNone) ++ended;
                                            });
      ASSERT_TRUE(generation.ok()) << generation.status().message();
      running.push_back(std::move(*generation));
    }
    // Some die before their first token, some in the middle; one was cancelled, one dropped.
    while (cycle % 3 != 0 && begun < 4) std::this_thread::yield();
    running[0]->cancel();
    running[1].reset();
    llm.reset();
    EXPECT_GE(ended, 2) << "those that nobody cancelled";
    for (size_t i = 2; i < running.size(); ++i) running[i]->wait();
  }
}

TEST_P(LlmEnd, MayComeWithRequestsOfTheCallersLoopUnfinished) {
  auto executor = std::make_unique<FakeExecutor>();
  auto llm = make_llm({}, std::move(executor), Drive::kCaller, source());
  ASSERT_TRUE(llm->add_request("a", "some text", {.max_tokens = 100}).ok());
  ASSERT_TRUE(llm->step().ok());
  llm.reset();
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, LlmEnd,
                         testing::Values("llama2_style_spm_bpe.json", "unigram_nfkc.json",
                                         "sentencepiece/unigram_bytes.model", "sentencepiece/bpe_bytes.model"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace_if(
                               name, [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

// ---- batches ----

class LlmBatch : public testing::TestWithParam<Drive> {
 protected:
  void start(EngineConfig config) {
    config.skip_tokenizer_init = true;
    auto executor = std::make_unique<FakeExecutor>();
    executor_ = executor.get();
    llm_ = make_llm(std::move(config), std::move(executor), GetParam());
    ASSERT_NE(llm_, nullptr);
  }
  static std::vector<Prompt> prompts(int count) {
    std::vector<Prompt> list;
    for (int i = 0; i < count; ++i) list.emplace_back(std::vector<TokenId>{10 + i % 900, 20 + i / 900});
    return list;
  }
  static void expect_right(const std::vector<RequestOutput>& outputs, int length) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      const auto number = static_cast<TokenId>(i);
      ASSERT_EQ(outputs[i].token_ids, expected_answer({10 + number % 900, 20 + number / 900}, length)) << i;
    }
  }
  FakeExecutor* executor_ = nullptr;
  std::unique_ptr<LLM> llm_;
};

TEST_P(LlmBatch, ThousandsOfPromptsAreMoreThanTheQueueHoldsAndAllAreAnswered) {
  start({});
  auto outputs = llm_->generate(prompts(5000), {.max_tokens = 2}, {.progress = false});
  ASSERT_TRUE(outputs.ok()) << outputs.status().message();
  ASSERT_THAT(*outputs, SizeIs(5000));
  expect_right(*outputs, 2);
}

TEST_P(LlmBatch, EveryBoundOnWhatWaitsIsKeptToAndNoneFailsTheCall) {
  const auto answer = [this](EngineConfig config, SamplingParams params) {
    start(std::move(config));
    auto outputs = llm_->generate(prompts(60), params, {.progress = false});
    ASSERT_TRUE(outputs.ok()) << outputs.status().message();
    for (const RequestOutput& output : *outputs) EXPECT_THAT(output.outputs, SizeIs(static_cast<size_t>(params.n)));
    if (params.n == 1) expect_right(*outputs, 3);
  };
  answer({.max_num_seqs = 2, .max_num_queued_reqs = 1}, {.max_tokens = 3});
  answer({.max_num_seqs = 4, .max_num_queued_reqs = 3}, {.n = 3, .max_tokens = 3});
  answer({.max_num_seqs = 4, .max_num_queued_tokens = 4}, {.max_tokens = 3});
  // 3 tokens of 1,001 entries of 16 bytes, and 6 KiB: two requests' log-probabilities fit at once.
  answer({.max_logprobs = -1, .max_request_bytes = 120'000}, {.max_tokens = 3, .logprobs = -1});
}

TEST_P(LlmBatch, WhatCanNeverBeQueuedIsRefusedAndNotWaitedFor) {
  start({.max_num_queued_reqs = 2});
  auto outputs = llm_->generate(prompts(2), {.n = 3, .max_tokens = 3}, {.progress = false});
  EXPECT_EQ(outputs.status().code(), StatusCode::kResourceExhausted);
}

TEST_P(LlmBatch, WhenOnePromptIsRefusedNothingIsGenerated) {
  start({.max_num_seqs = 2});
  std::vector<Prompt> list = prompts(100);
  list.emplace_back(std::vector<TokenId>{5, 99999});
  EXPECT_EQ(llm_->generate(list, {.max_tokens = 2}, {.progress = false}).status().param(), "prompt");
  list.back() = std::vector<TokenId>(600, 5);
  EXPECT_EQ(llm_->generate(list, {.max_tokens = 2}, {.progress = false}).status().param(), "prompt");
  EXPECT_EQ(executor_->num_steps(), 0);
}

INSTANTIATE_TEST_SUITE_P(Drives, LlmBatch, testing::Values(Drive::kOwnThread, Drive::kCaller), [](const auto& test) {
  return test.param == Drive::kCaller ? "callers_steps" : "own_thread";
});

TEST(LlmBatches, SeveralThreadsMayFillTheQueueTogether) {
  auto llm = make_llm({.skip_tokenizer_init = true, .max_num_seqs = 4, .max_num_queued_reqs = 5},
                      std::make_unique<FakeExecutor>());
  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([&llm, client] {
      std::vector<Prompt> list(200, Prompt(std::vector<TokenId>{50 + client}));
      auto outputs = llm->generate(list, {.max_tokens = 3}, {.progress = false});
      ASSERT_TRUE(outputs.ok()) << outputs.status().message();
      for (const RequestOutput& output : *outputs) EXPECT_EQ(output.token_ids, expected_answer({50 + client}, 3));
    });
  }
  for (std::thread& client : clients) client.join();
}

}  // namespace
}  // namespace quire
