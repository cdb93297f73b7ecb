#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/engine/fake_executor.h"
#include "tests/suites/chosen_executor.h"

namespace quire::engine {
namespace {

// Everything of one stream.
TokenEvent collect(TokenStream& stream) {
  TokenEvent all;
  while (all.finish == FinishReason::kNone) {
    TokenEvent event = stream.take();
    all.tokens.insert(all.tokens.end(), event.tokens.begin(), event.tokens.end());
    all.finish = event.finish;
    all.stop_token = event.stop_token;
    all.stopped_by_eos = event.stopped_by_eos;
    all.error = event.error;
  }
  return all;
}

class EngineTest : public testing::Test {
 protected:
  void start(EngineConfig config = {}, int64_t num_blocks = 64, int64_t max_model_len = 512) {
    auto executor = std::make_unique<FakeExecutor>(num_blocks, max_model_len, config.max_num_batched_tokens);
    executor_ = executor.get();
    config.skip_tokenizer_init = true;
    auto engine = Engine::create(config, {}, suites::chosen(std::move(executor)));
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(*engine);
  }
  std::unique_ptr<TokenStream> submit(std::vector<TokenId> prompt, int max_tokens) {
    auto stream = engine_->submit({.prompt = std::move(prompt), .params = {.max_tokens = max_tokens}});
    EXPECT_TRUE(stream.ok()) << stream.status().message();
    return stream.ok() ? std::move(stream->front()) : nullptr;
  }
  // The engine thread frees blocks a moment after a cancel; give it that moment.
  void expect_idle() {
    const auto busy = [this] {
      const EngineStats stats = engine_->stats();
      return stats.blocks_used > 0 || stats.num_running > 0 || stats.num_waiting > 0;
    };
    for (int i = 0; i < 2500 && busy(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_EQ(engine_->stats().blocks_used, 0);
    EXPECT_EQ(engine_->stats().num_running, 0);
    EXPECT_EQ(engine_->stats().num_waiting, 0);
  }

  FakeExecutor* executor_ = nullptr;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, ARequestIsAnsweredUntilItsLength) {
  start();
  const TokenEvent all = collect(*submit({5, 6, 7}, 20));
  EXPECT_EQ(all.tokens, expected_answer({5, 6, 7}, 20));
  EXPECT_EQ(all.finish, FinishReason::kLength);
  expect_idle();
}

TEST_F(EngineTest, TheModelsEndTokenStopsUnlessIgnored) {
  start();
  TokenEvent all = collect(*submit({5, FakeExecutor::kEosAfter}, 20));
  EXPECT_EQ(all.tokens, std::vector<TokenId>{FakeExecutor::kEos});
  EXPECT_EQ(all.finish, FinishReason::kStop);
  EXPECT_TRUE(all.stopped_by_eos);
  auto ignoring =
      engine_->submit({.prompt = {5, FakeExecutor::kEosAfter}, .params = {.max_tokens = 4, .ignore_eos = true}});
  all = collect(*ignoring->front());
  EXPECT_EQ(all.tokens.size(), 4u);
  EXPECT_EQ(all.finish, FinishReason::kLength);
}

TEST_F(EngineTest, ManyRequestsInASmallPoolAreEachAnsweredAsIfAlone) {
  start({.max_num_seqs = 16, .max_num_batched_tokens = 40}, /*num_blocks=*/20);
  std::vector<std::thread> clients;
  for (int client = 0; client < 8; ++client) {
    clients.emplace_back([this, client] {
      std::mt19937 random(static_cast<unsigned>(client));
      for (int i = 0; i < 20; ++i) {
        std::vector<TokenId> prompt(1 + random() % 60);
        for (TokenId& token : prompt) token = static_cast<TokenId>(10 + random() % 900);
        const int length = 1 + static_cast<int>(random() % 40);
        EXPECT_EQ(collect(*submit(prompt, length)).tokens, expected_answer(prompt, length));
      }
    });
  }
  for (std::thread& client : clients) client.join();
  expect_idle();
}

TEST_F(EngineTest, PreemptedRequestsAreAnsweredAsIfAlone) {
  // Each needs 2 blocks to begin and 5 in the end: more are admitted than can grow.
  start({.max_num_seqs = 16}, /*num_blocks=*/20);
  executor_->hold();
  std::vector<std::unique_ptr<TokenStream>> streams;
  for (TokenId i = 0; i < 10; ++i) streams.push_back(submit(std::vector<TokenId>(20, 50 + i), 60));
  executor_->release();
  for (TokenId i = 0; i < 10; ++i) {
    EXPECT_EQ(collect(*streams[static_cast<size_t>(i)]).tokens, expected_answer(std::vector<TokenId>(20, 50 + i), 60));
  }
  EXPECT_GT(engine_->stats().num_preemptions, 0);
  expect_idle();
}

TEST_F(EngineTest, ACancelledStreamEndsAndFreesItsBlocksWithinTwoSteps) {
  start();
  executor_->hold();
  auto stream = submit({5, 6, 7}, 400);
  executor_->wait_for_step(0);
  stream->cancel();
  const int64_t before = executor_->num_steps();
  executor_->release();
  EXPECT_EQ(collect(*stream).finish, FinishReason::kAbort);
  expect_idle();
  EXPECT_LE(executor_->num_steps(), before + 2);
}

TEST_F(EngineTest, ADroppedStreamIsCancelled) {
  start();
  submit({5, 6, 7}, 400).reset();
  expect_idle();
}

TEST_F(EngineTest, RandomCancelsLeakNothingAndDisturbNobody) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  start({.max_num_seqs = 8}, /*num_blocks=*/24);
  std::vector<std::thread> clients;
  for (unsigned client = 0; client < 6; ++client) {
    clients.emplace_back([this, client, seed] {
      std::mt19937 random(seed + client);
      for (int i = 0; i < 40; ++i) {
        const std::vector<TokenId> prompt(1 + random() % 50, static_cast<TokenId>(20 + random() % 100));
        const int length = 1 + static_cast<int>(random() % 60);
        auto stream = submit(prompt, length);
        if (random() % 2 == 0) {
          if (random() % 2 == 0) stream->take();
          continue;  // dropped
        }
        EXPECT_EQ(collect(*stream).tokens, expected_answer(prompt, length));
      }
    });
  }
  for (std::thread& client : clients) client.join();
  expect_idle();
}

TEST_F(EngineTest, AFaultOfOneRequestFailsItAlone) {
  start();
  executor_->hold();
  auto good = submit({5, 6}, 30);
  auto bad = submit({FakeExecutor::kFaultToken}, 30);
  executor_->release();
  const TokenEvent failed = collect(*bad);
  EXPECT_EQ(failed.finish, FinishReason::kError);
  EXPECT_EQ(failed.error.message(), "not a number");
  EXPECT_EQ(collect(*good).tokens, expected_answer({5, 6}, 30));
  EXPECT_TRUE(engine_->healthy());
}

TEST_F(EngineTest, AFailedWorkerFailsAllRequestsAndRefusesNewOnes) {
  start();
  auto fatal = submit({FakeExecutor::kFatalToken}, 30);
  EXPECT_EQ(collect(*fatal).finish, FinishReason::kError);
  EXPECT_FALSE(engine_->healthy());
  EXPECT_EQ(engine_->submit({.prompt = {1}, .params = {}}).status().code(), StatusCode::kUnavailable);
}

TEST_F(EngineTest, ASlowConsumerGetsEverythingMergedIntoOneEvent) {
  start();
  auto stream = submit({5, 6, 7}, 50);
  expect_idle();
  collect(*submit({5}, 1));  // what is delivered is delivered in order
  const TokenEvent all = stream->take();
  EXPECT_EQ(all.tokens, expected_answer({5, 6, 7}, 50));
  EXPECT_EQ(all.finish, FinishReason::kLength);
}

TEST_F(EngineTest, AFullQueueRefuses) {
  start({.max_num_queued_reqs = 2});
  executor_->hold();
  std::vector<std::unique_ptr<TokenStream>> streams;
  streams.push_back(submit({5}, 4));
  executor_->wait_for_step(0);
  streams.push_back(submit({6}, 4));
  streams.push_back(submit({7}, 4));
  EXPECT_EQ(engine_->submit({.prompt = {8}, .params = {}}).status().code(), StatusCode::kResourceExhausted);
  executor_->release();
  for (auto& stream : streams) EXPECT_EQ(collect(*stream).tokens.size(), 4u);
}

TEST_F(EngineTest, WhatCannotFitIsRefusedAtOnceWithTheField) {
  start({}, /*num_blocks=*/4, /*max_model_len=*/512);
  const Status too_long = engine_->submit({.prompt = std::vector<TokenId>(600, 5), .params = {}}).status();
  EXPECT_EQ(too_long.code(), StatusCode::kInvalidArgument);
  const Status pool = engine_->submit({.prompt = std::vector<TokenId>(60, 5), .params = {.max_tokens = 100}}).status();
  EXPECT_EQ(pool.code(), StatusCode::kInvalidArgument);
  const Status empty = engine_->submit({.prompt = {}, .params = {}}).status();
  EXPECT_EQ(empty.code(), StatusCode::kInvalidArgument);
  const Status id = engine_->submit({.prompt = {5000}, .params = {}}).status();
  EXPECT_EQ(id.param(), "prompt");
  const Status negative = engine_->submit({.prompt = {-1}, .params = {}}).status();
  EXPECT_EQ(negative.param(), "prompt");
  const Status temperature = engine_->submit({.prompt = {5}, .params = {.temperature = 3}}).status();
  EXPECT_EQ(temperature.param(), "temperature");
}

TEST_F(EngineTest, AStreamMayOutliveItsEngine) {
  start();
  executor_->hold();
  auto stream = submit({5, 6}, 400);
  executor_->wait_for_step(0);
  executor_->release();
  engine_.reset();
  EXPECT_NE(collect(*stream).finish, FinishReason::kNone);
  stream.reset();
}

TEST_F(EngineTest, MetricsCountWhatHappened) {
  start({.served_model_name = "fake"});
  collect(*submit({5, 6, 7}, 20));
  const std::string text = engine_->metrics().text();
  EXPECT_THAT(text, testing::HasSubstr("vllm:generation_tokens_total{model_name=\"fake\"} 20"));
  EXPECT_THAT(text, testing::HasSubstr("vllm:prompt_tokens_total{model_name=\"fake\"} 3"));
  EXPECT_THAT(text, testing::HasSubstr("finished_reason=\"length\""));
  EXPECT_THAT(text, testing::HasSubstr("quire:step_phase_seconds_total"));
}

}  // namespace
}  // namespace quire::engine
