// add_request(), step(), abort_request(): the loop in the caller's hands.
#include <atomic>
#include <map>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "quire/llm.h"
#include "tests/engine/fake_executor.h"
#include "tests/runner/tiny_model.h"
#include "tests/suites/chosen_executor.h"

namespace quire {
namespace {

using engine::expected_answer;
using engine::FakeExecutor;
using runner::tiny_path;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// What all steps together said of a request.
struct Gathered {
  std::map<int32_t, std::vector<TokenId>> tokens;  // by answer
  std::map<int32_t, FinishReason> finish;
  std::map<int32_t, Status> errors;
  std::map<int32_t, std::string> receipts;
  std::vector<PositionLogprobs> prompt_logprobs;
  RequestUsage usage;
  bool finished = false;
};

class LoopTest : public testing::Test {
 protected:
  void start(EngineConfig config = {}, int64_t num_blocks = 64, Drive drive = Drive::kCaller) {
    config.skip_tokenizer_init = true;
    auto executor = std::make_unique<FakeExecutor>(num_blocks, 512, config.max_num_batched_tokens);
    executor_ = executor.get();
    auto made = engine::Engine::create(std::move(config), {}, suites::chosen(std::move(executor)), nullptr, drive);
    ASSERT_TRUE(made.ok()) << made.status().message();
    llm_ = std::make_unique<LLM>(std::move(*made));
  }
  Status add(const std::string& id, std::vector<TokenId> prompt, const SamplingParams& params) {
    return llm_->add_request(id, std::move(prompt), params);
  }
  void gather(const std::vector<StepOutput>& outputs) {
    for (const StepOutput& output : outputs) {
      Gathered& all = gathered_[output.request_id];
      EXPECT_FALSE(all.finished) << "nothing follows the end of " << output.request_id;
      for (const CompletionUpdate& answer : output.outputs) {
        std::vector<TokenId>& tokens = all.tokens[answer.index];
        tokens.insert(tokens.end(), answer.token_ids.begin(), answer.token_ids.end());
        all.finish[answer.index] = answer.finish_reason;
        all.errors[answer.index] = answer.error;
        all.receipts[answer.index] = answer.receipt;
      }
      if (!output.prompt_logprobs.empty()) all.prompt_logprobs = output.prompt_logprobs;
      all.usage = output.usage;
      all.finished = output.finished;
    }
  }
  std::vector<StepOutput> step() {
    auto outputs = llm_->step();
    EXPECT_TRUE(outputs.ok()) << outputs.status().message();
    if (!outputs.ok()) return {};
    gather(*outputs);
    return std::move(*outputs);
  }
  int run_to_end() {
    int steps = 0;
    for (; llm_->has_unfinished() && steps < 10000; ++steps) step();
    return steps;
  }

  FakeExecutor* executor_ = nullptr;
  std::unique_ptr<LLM> llm_;
  std::map<std::string, Gathered> gathered_;
};

TEST_F(LoopTest, EachStepIsOneOfTheEnginesAndBringsATokenToEachRequest) {
  start();
  ASSERT_TRUE(add("a", {5, 6, 7}, {.max_tokens = 3}).ok());
  ASSERT_TRUE(add("b", {8, 9}, {.max_tokens = 2}).ok());
  EXPECT_EQ(executor_->num_steps(), 0) << "nothing happens between steps";
  EXPECT_TRUE(llm_->has_unfinished());
  for (int i = 1; i <= 2; ++i) {
    const std::vector<StepOutput> outputs = step();
    EXPECT_EQ(executor_->num_steps(), i);
    ASSERT_THAT(outputs, SizeIs(2));
    EXPECT_EQ(outputs[0].request_id, "a");
    EXPECT_EQ(outputs[1].request_id, "b");
    for (const StepOutput& output : outputs) {
      ASSERT_THAT(output.outputs, SizeIs(1));
      EXPECT_THAT(output.outputs[0].token_ids, SizeIs(1));
      EXPECT_EQ(output.usage.completion_tokens, i);
    }
    EXPECT_FALSE(outputs[0].finished);
    EXPECT_EQ(outputs[1].finished, i == 2);
  }
  EXPECT_THAT(step(), SizeIs(1));
  EXPECT_FALSE(llm_->has_unfinished());
  EXPECT_THAT(step(), IsEmpty());
  EXPECT_EQ(executor_->num_steps(), 3) << "a step with nothing to do does nothing";
  EXPECT_EQ(gathered_["a"].tokens[0], expected_answer({5, 6, 7}, 3));
  EXPECT_EQ(gathered_["b"].tokens[0], expected_answer({8, 9}, 2));
  EXPECT_EQ(gathered_["a"].finish[0], FinishReason::kLength);
  EXPECT_EQ(gathered_["a"].usage.prompt_tokens, 3);
}

TEST_F(LoopTest, APromptInChunksBringsNothingUntilItIsComputed) {
  start({.max_num_batched_tokens = 16});
  ASSERT_TRUE(add("a", std::vector<TokenId>(40, 7), {.max_tokens = 1}).ok());
  EXPECT_THAT(step(), IsEmpty());
  EXPECT_THAT(step(), IsEmpty());
  EXPECT_THAT(step(), SizeIs(1));
}

TEST_F(LoopTest, RequestsMayComeWhileOthersAreBeingAnswered) {
  start({.max_num_seqs = 4, .max_num_batched_tokens = 32}, /*num_blocks=*/24);
  for (TokenId i = 0; i < 20; ++i) {
    ASSERT_TRUE(
        add(std::to_string(i), std::vector<TokenId>(10 + static_cast<size_t>(i) % 7, 20 + i), {.max_tokens = 5 + i})
            .ok());
    step();
    step();
  }
  run_to_end();
  ASSERT_THAT(gathered_, SizeIs(20));
  for (TokenId i = 0; i < 20; ++i) {
    const Gathered& all = gathered_[std::to_string(i)];
    EXPECT_TRUE(all.finished);
    EXPECT_EQ(all.tokens.at(0), expected_answer(std::vector<TokenId>(10 + static_cast<size_t>(i) % 7, 20 + i), 5 + i));
  }
  EXPECT_EQ(llm_->engine().stats().blocks_used, 0);
}

TEST_F(LoopTest, AnAbortedRequestIsHeardOfNoMoreAndFreesItsBlocksInOneStep) {
  start();
  ASSERT_TRUE(add("long", {5, 6}, {.max_tokens = 400}).ok());
  ASSERT_TRUE(add("other", {7, 8}, {.max_tokens = 6}).ok());
  step();
  step();
  EXPECT_TRUE(llm_->abort_request("long"));
  EXPECT_FALSE(llm_->abort_request("long"));
  EXPECT_FALSE(llm_->abort_request("unknown"));
  EXPECT_EQ(llm_->num_unfinished(), 1);
  run_to_end();
  EXPECT_THAT(gathered_["long"].tokens[0], SizeIs(2));
  EXPECT_FALSE(gathered_["long"].finished);
  EXPECT_EQ(gathered_["other"].tokens[0], expected_answer({7, 8}, 6));

  ASSERT_TRUE(add("long", {5, 6}, {.max_tokens = 400}).ok()) << "the id is free again";
  step();
  llm_->abort_request("long");
  EXPECT_EQ(llm_->num_unfinished(), 0);
  EXPECT_TRUE(llm_->has_unfinished()) << "its blocks are to be dropped";
  EXPECT_THAT(step(), IsEmpty());
  EXPECT_FALSE(llm_->has_unfinished());
  EXPECT_EQ(llm_->engine().stats().blocks_used, 0);
}

TEST_F(LoopTest, WhatIsRefusedDisturbsNobody) {
  start({}, /*num_blocks=*/4);
  ASSERT_TRUE(add("a", {5, 6}, {.max_tokens = 5}).ok());
  step();
  EXPECT_EQ(add("a", {5}, {}).param(), "request_id");
  EXPECT_THAT(add("a", {5}, {}).message(), HasSubstr("\"a\""));
  EXPECT_EQ(add("", {5}, {}).param(), "request_id");
  EXPECT_EQ(add("b", {}, {}).param(), "prompt");
  EXPECT_EQ(add("b", std::vector<TokenId>(600, 5), {}).param(), "prompt");
  EXPECT_EQ(add("b", {99999}, {}).param(), "prompt");
  EXPECT_EQ(add("b", {5}, {.max_tokens = 400}).param(), "max_tokens");
  EXPECT_EQ(add("b", {5}, {.top_p = 0}).param(), "top_p");
  EXPECT_THAT(llm_->add_request("b", "text", {}).message(), HasSubstr("tokenizer"));
  EXPECT_FALSE(llm_->add_request("b", std::vector<ChatMessage>{{"user", "hi"}}, {}).ok());
  EXPECT_EQ(llm_->num_unfinished(), 1);
  run_to_end();
  EXPECT_EQ(gathered_["a"].tokens[0], expected_answer({5, 6}, 5));
  EXPECT_THAT(gathered_, SizeIs(1));
}

TEST_F(LoopTest, AFullQueueRefusesUntilStepsHaveEmptiedIt) {
  start({.max_num_queued_reqs = 2});
  ASSERT_TRUE(add("a", {5}, {.max_tokens = 2}).ok());
  ASSERT_TRUE(add("b", {6}, {.max_tokens = 2}).ok());
  EXPECT_EQ(add("c", {7}, {.max_tokens = 2}).code(), StatusCode::kResourceExhausted);
  step();
  EXPECT_TRUE(add("c", {7}, {.max_tokens = 2}).ok());
  run_to_end();
  EXPECT_TRUE(gathered_["c"].finished);
}

TEST_F(LoopTest, SeveralAnswersFinishOneByOneAndTheRequestWithTheLast) {
  start();
  ASSERT_TRUE(add("a", {5, FakeExecutor::kEosAfter}, {.n = 3, .max_tokens = 4}).ok());
  run_to_end();
  const Gathered& all = gathered_["a"];
  EXPECT_TRUE(all.finished);
  EXPECT_THAT(all.tokens, SizeIs(3));
  for (const auto& [index, reason] : all.finish) EXPECT_EQ(reason, FinishReason::kStop) << index;
  EXPECT_EQ(all.usage.completion_tokens, 3);
  EXPECT_EQ(all.usage.prompt_tokens, 2);
  EXPECT_EQ(all.usage.cached_tokens, 0) << "what they share is not found in the cache";
}

TEST_F(LoopTest, AFaultOfOneRequestEndsItAloneWithItsError) {
  start();
  ASSERT_TRUE(add("good", {5, 6}, {.max_tokens = 4}).ok());
  ASSERT_TRUE(add("bad", {FakeExecutor::kFaultToken}, {.max_tokens = 4}).ok());
  run_to_end();
  EXPECT_TRUE(gathered_["bad"].finished);
  EXPECT_EQ(gathered_["bad"].finish[0], FinishReason::kError);
  EXPECT_EQ(gathered_["bad"].errors[0].message(), "not a number");
  EXPECT_EQ(gathered_["good"].tokens[0], expected_answer({5, 6}, 4));
}

TEST_F(LoopTest, AFailedEngineSaysSoOnceAndLeavesNothingToLoopFor) {
  start();
  ASSERT_TRUE(add("a", {FakeExecutor::kFatalToken}, {.max_tokens = 4}).ok());
  const auto failed = llm_->step();
  EXPECT_EQ(failed.status().code(), StatusCode::kInternal);
  EXPECT_THAT(failed.status().message(), HasSubstr("the worker is gone"));
  EXPECT_FALSE(llm_->has_unfinished());
  EXPECT_EQ(llm_->step().status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(add("b", {5}, {}).code(), StatusCode::kUnavailable);
}

TEST_F(LoopTest, ARequestBeyondItsTimeoutEndsAtAStep) {
  start();
  ASSERT_TRUE(
      llm_->add_request("a", std::vector<TokenId>{5}, {.max_tokens = 400}, {.timeout = std::chrono::milliseconds(1)})
          .ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  run_to_end();
  EXPECT_EQ(gathered_["a"].errors[0].code(), StatusCode::kDeadlineExceeded);
}

TEST_F(LoopTest, ASecondThreadInStepIsToldSo) {
  start();
  ASSERT_TRUE(add("a", {5, 6}, {.max_tokens = 3}).ok());
  executor_->hold();
  std::thread first([this] { step(); });
  executor_->wait_for_step(0);
  const auto second = llm_->step();
  EXPECT_EQ(second.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(second.status().message(), HasSubstr("another thread is in step()"));
  EXPECT_TRUE(add("b", {7}, {.max_tokens = 2}).ok()) << "requests may be added meanwhile";
  EXPECT_TRUE(llm_->has_unfinished());
  executor_->release();
  first.join();
  run_to_end();  // on another thread than the first step
  EXPECT_EQ(gathered_["a"].tokens[0], expected_answer({5, 6}, 3));
  EXPECT_EQ(gathered_["b"].tokens[0], expected_answer({7}, 2));
}

TEST_F(LoopTest, ManyThreadsMayAddAndAbortBesideTheOneThatSteps) {
  start({.max_num_seqs = 8}, /*num_blocks=*/40);
  std::atomic<int> adding{4};
  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([this, client, &adding] {
      for (int i = 0; i < 50; ++i) {
        const std::string id = std::to_string(client) + "." + std::to_string(i);
        EXPECT_TRUE(add(id, {10 + client, 20 + i}, {.max_tokens = 6}).ok());
        if (i % 5 == 4) llm_->abort_request(id);
      }
      --adding;
    });
  }
  while (adding > 0 || llm_->has_unfinished()) step();
  for (std::thread& client : clients) client.join();
  while (llm_->has_unfinished()) step();
  for (int client = 0; client < 4; ++client) {
    for (int i = 0; i < 50; ++i) {
      if (i % 5 == 4) continue;
      const Gathered& all = gathered_[std::to_string(client) + "." + std::to_string(i)];
      EXPECT_TRUE(all.finished);
      EXPECT_EQ(all.tokens.at(0), expected_answer({10 + client, 20 + i}, 6));
    }
  }
  EXPECT_EQ(llm_->engine().stats().blocks_used, 0);
}

TEST_F(LoopTest, TheBlockingCallMakesTheStepsItselfAndLosesNothingOfOthers) {
  start();
  ASSERT_TRUE(add("a", {5, 6}, {.max_tokens = 8}).ok());
  step();
  auto outputs = llm_->generate({std::vector<TokenId>{7, 8}}, {.max_tokens = 20}, {.progress = false});
  ASSERT_TRUE(outputs.ok()) << outputs.status().message();
  EXPECT_EQ(outputs->front().token_ids, expected_answer({7, 8}, 20));
  EXPECT_TRUE(llm_->has_unfinished()) << "the rest of the other has not been taken";
  run_to_end();
  EXPECT_TRUE(gathered_["a"].finished);
  EXPECT_EQ(gathered_["a"].tokens[0], expected_answer({5, 6}, 8));
}

TEST_F(LoopTest, CallbacksNeedAnEngineThreadAndStepsTheCallers) {
  start();
  const auto refused = llm_->generate_async(std::vector<TokenId>{5}, {}, [](const RequestUpdate&) {});
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("step()"));
  start({}, 64, Drive::kOwnThread);
  EXPECT_THAT(llm_->step().status().message(), HasSubstr("Drive::kCaller"));
  EXPECT_THAT(add("a", {5}, {}).message(), HasSubstr("generate()"));
  EXPECT_FALSE(llm_->has_unfinished());
}

TEST_F(LoopTest, AnEngineMayGoWithRequestsUnfinished) {
  for (const bool async : {false, true}) {
    start({.async_scheduling = async});
    ASSERT_TRUE(add("a", {5, 6}, {.max_tokens = 400}).ok());
    step();
    llm_.reset();
  }
}

// ---- the same bits ----

class LoopBits : public LoopTest, public testing::WithParamInterface<bool> {};

TEST_P(LoopBits, ReceiptsAreThoseOfTheBlockingCall) {
  std::vector<std::pair<std::vector<TokenId>, SamplingParams>> requests;
  for (int i = 0; i < 10; ++i) {
    std::vector<TokenId> prompt;
    for (int j = 0; j < 12 + 5 * (i % 4); ++j) prompt.push_back(10 + (j * 7) % 400);
    requests.emplace_back(std::move(prompt), SamplingParams{.n = 1 + i % 2,
                                                            .temperature = i % 4 == 0 ? 0.0f : 0.9f,
                                                            .seed = 100 + static_cast<uint64_t>(i),
                                                            .max_tokens = 10 + i,
                                                            .ignore_eos = true,
                                                            .logprobs = 1,
                                                            .prompt_logprobs = 0,
                                                            .deterministic = true});
    if (requests.back().second.temperature == 0) requests.back().second.n = 1;
  }
  EngineConfig config{.model = tiny_path("llama"), .skip_tokenizer_init = true, .kv_cache_memory_bytes = 4 << 20};
  auto blocking = LLM::create(config);
  ASSERT_TRUE(blocking.ok()) << blocking.status().message();
  config.async_scheduling = GetParam();
  auto stepped = LLM::create(config, Drive::kCaller);
  ASSERT_TRUE(stepped.ok()) << stepped.status().message();
  llm_ = std::move(*stepped);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(add(std::to_string(i), requests[i].first, requests[i].second).ok());
    step();
  }
  run_to_end();
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    const Gathered& all = gathered_[std::to_string(i)];
    EXPECT_TRUE(all.finished);
    auto alone = (*blocking)->generate({requests[i].first}, requests[i].second, {.progress = false});
    ASSERT_TRUE(alone.ok()) << alone.status().message();
    EXPECT_EQ(all.prompt_logprobs.size(), requests[i].first.size() - 1);
    ASSERT_EQ(all.receipts.size(), alone->front().outputs.size());
    for (size_t answer = 0; answer < all.receipts.size(); ++answer) {
      EXPECT_THAT(all.receipts.at(static_cast<int32_t>(answer)), SizeIs(16));
      EXPECT_EQ(all.receipts.at(static_cast<int32_t>(answer)), alone->front().outputs[answer].receipt);
      EXPECT_EQ(all.tokens.at(static_cast<int32_t>(answer)), alone->front().outputs[answer].token_ids);
    }
  }
  EXPECT_EQ(llm_->engine().stats().blocks_used, 0) << "nothing is left in flight";
}

INSTANTIATE_TEST_SUITE_P(Scheduling, LoopBits, testing::Bool(),
                         [](const auto& test) { return test.param ? "async" : "plain"; });

}  // namespace
}  // namespace quire
