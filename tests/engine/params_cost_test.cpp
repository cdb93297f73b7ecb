// What a request's parameters cost before it runs: tables made of texts, copies for answers, log-probabilities.
#include <algorithm>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/output.h"
#include "tests/engine/fake_executor.h"
#include "tests/suites/allocations.h"
#include "tests/suites/chosen_executor.h"

namespace quire::engine {
namespace {

using testing::HasSubstr;

// The printable bytes, one a token, and `words` more tokens of letters.
Vocabulary wordy_vocabulary(int words) {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "gpt-2";
  const auto add = [&vocabulary](const std::string& spelling) {
    vocabulary.tokens.push_back(spelling);
    vocabulary.token_types.push_back(VocabularyTokenType::kNormal);
  };
  for (int byte = 33; byte <= 126; ++byte) add(std::string(1, static_cast<char>(byte)));
  add("\xC4\xA0");  // a space
  for (int i = 0; i < words; ++i) {
    std::string word = "w";
    for (int rest = i; word.size() < 6; rest /= 26) word.push_back(static_cast<char>('a' + rest % 26));
    add(word);
  }
  return vocabulary;
}

class ParamsCost : public testing::Test {
 protected:
  static constexpr int kWords = 20'000;

  void start(EngineConfig config = {}) {
    auto executor = std::make_unique<FakeExecutor>(1024);
    executor_ = executor.get();
    TextSource text;
    text.vocabulary = wordy_vocabulary(kWords);
    executor_->hold();  // what is submitted stays
    auto engine = Engine::create(std::move(config), std::move(text), suites::chosen(std::move(executor)));
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(*engine);
  }
  void TearDown() override {
    if (executor_ != nullptr) executor_->release();
  }
  Result<std::vector<std::unique_ptr<TokenStream>>> submit(SamplingParams params) {
    return engine_->submit({.prompt = {5, 6, 7}, .params = std::move(params)});
  }
  Allocations cost_of(SamplingParams params) {
    return allocations_of([&] {
      const auto streams = submit(std::move(params));
      EXPECT_TRUE(streams.ok()) << streams.status().message();
    });
  }
  static TokenEvent end_of(TokenStream& stream) {
    while (true) {
      TokenEvent event = stream.take();
      if (event.finish != FinishReason::kNone) return event;
    }
  }

  FakeExecutor* executor_ = nullptr;
  std::unique_ptr<Engine> engine_;
};

TEST_F(ParamsCost, BreakersThatManyTokensContainAreOneSetForAllAnswersAndForLaterRequests) {
  start();
  const SamplingParams plain{.n = 128, .max_tokens = 4};
  SamplingParams dry = plain;
  dry.dry_multiplier = 1.0f;
  dry.dry_sequence_breakers = {"a", "b", "c", "d", "e"};
  cost_of(plain);
  const Allocations without = cost_of(plain);
  const Allocations first = cost_of(dry);
  const Allocations second = cost_of(dry);
  // A bit a token is 2.5 KB; the vocabulary's own text is made once.
  EXPECT_LE(first.bytes - without.bytes, 2'000'000);
  EXPECT_LE(second.bytes - without.bytes, 16'000);
  EXPECT_LE(second.count - without.count, 200);
}

TEST_F(ParamsCost, AnswersShareTheirParameters) {
  start();
  SamplingParams one{.n = 1, .max_tokens = 4};
  for (TokenId id = 0; id < 900; ++id) one.logit_bias.emplace_back(id, 0.5f);
  SamplingParams many = one;
  many.n = 100;
  SamplingParams bare{.n = 100, .max_tokens = 4};
  const int64_t of_one = cost_of(one).bytes;
  EXPECT_LE(cost_of(many).bytes, cost_of(bare).bytes + 3 * of_one) << "7,200 bytes of biases each";
}

TEST_F(ParamsCost, PromptsOfARequestShareWhatWasPreparedForIt) {
  start();
  SamplingParams params{.max_tokens = 4};
  for (TokenId id = 0; id < 900; ++id) params.logit_bias.emplace_back(id, 0.5f);
  for (int i = 0; i < 100; ++i) params.bad_words.push_back("x" + std::to_string(i) + "y");
  params.dry_multiplier = 1.0f;
  const auto prepared = engine_->prepare(params);
  ASSERT_TRUE(prepared.ok()) << prepared.status().message();
  EXPECT_GT(prepared->heap_bytes(), 900 * 8 + 100 * 4 * 4);
  const auto cost_of_prompt = [this](const PreparedParams& shared) {
    return allocations_of([&] {
      EXPECT_TRUE(engine_->submit({.prompt = {5, 6, 7}, .params = {}, .prepared = shared}).ok());
    });
  };
  const auto bare = engine_->prepare({.max_tokens = 4});
  ASSERT_TRUE(bare.ok());
  cost_of_prompt(*bare);
  EXPECT_LE(cost_of_prompt(*prepared).bytes, cost_of_prompt(*bare).bytes + 1024);
}

TEST_F(ParamsCost, BadWordsAreBoundedByTheTokensThatTheyBecome) {
  start();
  SamplingParams params{.max_tokens = 4};
  params.bad_words.assign(400, std::string(20, 'x'));  // 20 tokens at the beginning of a text, 21 behind a space
  const auto some = submit(params);
  EXPECT_TRUE(some.ok()) << some.status().message();
  params.bad_words.assign(1000, std::string(20, 'x'));
  const Status refused = submit(params).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.param(), "bad_words");
  EXPECT_THAT(refused.message(), HasSubstr("16384"));
}

TEST_F(ParamsCost, ARequestThatLeavesNoTokenToChooseIsRefusedWithASentence) {
  start();
  const auto refused = [this](const SamplingParams& params, const char* param) {
    const Status status = submit(params).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << param;
    EXPECT_EQ(status.param(), param);
    EXPECT_THAT(status.message(), HasSubstr("no token could be chosen"));
  };
  const TokenId end = FakeExecutor::kEos;
  refused({.allowed_token_ids = std::vector<TokenId>{end}, .min_tokens = 1}, "allowed_token_ids");
  refused({.allowed_token_ids = std::vector<TokenId>{end, 9}, .min_tokens = 1, .stop_token_ids = {9}},
          "allowed_token_ids");
  refused({.allowed_token_ids = std::vector<TokenId>{'x' - 33}, .bad_words = {"x"}}, "allowed_token_ids");
  std::vector<TokenId> all;
  for (TokenId id = 0; id < FakeExecutor::kVocabSize; ++id) all.push_back(id);
  refused({.min_tokens = 1, .stop_token_ids = all}, "stop_token_ids");
  EXPECT_TRUE(submit({.allowed_token_ids = std::vector<TokenId>{end}}).ok()) << "it may end at once";
  EXPECT_TRUE(submit({.allowed_token_ids = std::vector<TokenId>{end}, .min_tokens = 1, .ignore_eos = true}).ok());
  EXPECT_TRUE(submit({.allowed_token_ids = std::vector<TokenId>{end, 9}, .min_tokens = 1}).ok());
}

// ---- log-probabilities ----

// What an answer to three tokens is priced at beside them.
int64_t without_logprobs() {
  return cost_of(SamplingParams(), 3, {.vocab_size = FakeExecutor::kVocabSize, .max_model_len = 1000}).heap_bytes;
}

TEST_F(ParamsCost, ALogProbabilityCountsWithAllThatItIsStoredIn) {
  const int64_t each = static_cast<int64_t>(sizeof(PositionLogprobs));
  start({.max_request_bytes = without_logprobs() + 400 * each});
  EXPECT_TRUE(submit({.max_tokens = 400, .logprobs = 0}).ok());
  const Status refused = submit({.max_tokens = 401, .logprobs = 0}).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.param(), "logprobs");
}

TEST_F(ParamsCost, LogProbabilitiesCountUntilTheirConsumerHasTakenThem) {
  start({.max_request_bytes = without_logprobs() + 100 * static_cast<int64_t>(sizeof(PositionLogprobs))});
  executor_->release();
  const SamplingParams most{.max_tokens = 80, .logprobs = 0};
  auto first = submit(most);
  ASSERT_TRUE(first.ok());
  // Its last event is there, and nobody has taken it.
  for (int i = 0; i < 2000 && engine_->stats().num_running + engine_->stats().num_waiting > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_EQ(engine_->stats().num_running + engine_->stats().num_waiting, 0);
  EXPECT_EQ(submit(most).status().code(), StatusCode::kResourceExhausted);
  {
    const TokenEvent last = end_of(*first->front());
    EXPECT_EQ(submit(most).status().code(), StatusCode::kResourceExhausted) << "it is still held";
  }
  auto second = submit(most);
  ASSERT_TRUE(second.ok()) << second.status().message();
  end_of(*second->front());
  auto third = submit(most);
  ASSERT_TRUE(third.ok());
  third->clear();  // dropped: ends within two steps
  Status fourth;
  for (int i = 0; i < 2000; ++i) {
    fourth = submit(most).status();
    if (fourth.ok()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(fourth.ok()) << fourth.message();
}

TEST_F(ParamsCost, AnAnswersLogProbabilitiesCountUntilItIsDropped) {
  start({.max_request_bytes = 3 * without_logprobs() + 200 * static_cast<int64_t>(sizeof(PositionLogprobs))});
  executor_->release();
  // Of three answers the best is returned, when all are there.
  const GenerationRequest ranked{.prompt = {5, 6}, .params = {.best_of = 3, .max_tokens = 50}};
  auto answers = Completion::start(*engine_, ranked);
  ASSERT_TRUE(answers.ok()) << answers.status().message();
  {
    const OutputDelta whole = answers->front()->take();
    EXPECT_EQ(whole.tokens.size(), 50u);
    EXPECT_EQ(Completion::start(*engine_, ranked).status().code(), StatusCode::kResourceExhausted);
  }
  answers->clear();
  EXPECT_TRUE(Completion::start(*engine_, ranked).ok());
}

}  // namespace
}  // namespace quire::engine
