// Rows that are drawn where the logits lie beside the same rows drawn by the host: many at once, in more pieces than
// one, of requests of all kinds.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>

#include "runner/local_executor.h"
#include "tests/runner/same_logprobs.h"
#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

constexpr size_t kSequences = 100;
constexpr int32_t kSteps = 4;
constexpr int64_t kVocabSize = 512;

// Allows half of the tokens and refuses a third of those; from the fourth on it is in trouble, if it is of that kind.
class Refusing final : public TokenConstraint {
 public:
  explicit Refusing(bool fails) : fails_(fails) {}
  std::unique_ptr<State> start() const override { return std::make_unique<Half>(fails_); }
  Status check(std::string_view) const override { return {}; }
  bool whole_only() const override { return false; }

 private:
  struct Half final : State {
    explicit Half(bool may_fail) : fails(may_fail) {}
    std::unique_ptr<State> clone() const override { return std::make_unique<Half>(*this); }
    bool allowed(std::span<uint32_t> mask) override {
      std::ranges::fill(mask, had % 2 == 0 ? 0x55555555U : 0xaaaaaaaaU);
      return true;
    }
    bool accept(TokenId token) override {
      if (token % 3 == 1) return false;
      ++had;
      return true;
    }
    Status trouble() const override {
      return fails && had == 3 ? invalid_argument("the form is in trouble") : Status();
    }
    bool fails;
    int had = 0;
  };
  const bool fails_;
};

enum class Way { kDevice, kHost, kEither };

struct Asked {
  SamplingParams params;
  Way way = Way::kDevice;
};

Asked asked(size_t i) {
  Asked one;
  SamplingParams& p = one.params;
  p.temperature = i % 3 == 0 ? 0.9f : 0.0f;
  p.seed = i;
  if (i % 4 == 1) p.logprobs = static_cast<int32_t>(i % 33);
  if (i % 5 < 3) p.repetition_penalty = 1.3f;
  if (i % 5 == 3) p.logit_bias = {{static_cast<TokenId>(i), 7.0f}, {3, -2.0f}, {3, 1.5f}};
  if (i % 7 == 2) p.frequency_penalty = 0.8f;
  if (i % 7 == 3) p.prompt_logprobs = static_cast<int32_t>(i % 3);
  if (i % 11 == 4) p.constraint = std::make_shared<Refusing>(i % 2 == 0);
  if (i % 11 == 4) one.way = Way::kEither;
  if (i % 13 == 5) p.xtc_probability = 0.5f;
  if (i % 13 == 6) p.logprobs = i % 2 == 0 ? -1 : 33;
  if ((i % 13 == 5 && !p.greedy()) || i % 13 == 6) one.way = Way::kHost;
  return one;
}

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<PositionLogprobs> logprobs;
  std::vector<PositionLogprobs> prompt_logprobs;
  std::string error;
};

struct Outcome {
  std::vector<Answer> answers = std::vector<Answer>(kSequences);
  int64_t host_rows = 0;
  int32_t steps_ahead = 0;
};

StepPlan plan_of(int32_t step, const std::vector<size_t>& sequences) {
  StepPlan plan;
  for (const size_t i : sequences) {
    const auto prompt = static_cast<int32_t>(2 + i % 4);
    if (step == 0) {
      NewSequence& added = plan.added.emplace_back();
      added.id = i;
      for (int32_t at = 0; at < prompt; ++at) added.prompt.push_back(static_cast<TokenId>((7 * i + 31 * at) % 500));
      added.params = std::make_shared<const SamplingParams>(asked(i).params);
      added.seed = i;
    }
    plan.scheduled.push_back({.id = i,
                              .num_computed_tokens = step == 0 ? 0 : prompt + step - 1,
                              .num_new_tokens = step == 0 ? prompt : 1,
                              .block_table = {static_cast<BlockId>(i)},
                              .samples = true});
  }
  return plan;
}

// In flight: steps that are submitted before the first of them is collected. With two, rows that only the host can
// sample from, which hold up the step after them, are left out.
Outcome run(const std::string& kind, size_t in_flight = 1) {
  Outcome outcome;
  EngineConfig config{.model = tiny_path("llama"), .skip_tokenizer_init = true, .num_gpu_blocks_override = 128};
  config.max_num_seqs = static_cast<int32_t>(kSequences);
  config.max_num_batched_tokens = 400;  // a step of so many is run at start, which takes a played card a while
  config.enforce_eager = true;
  auto executor = make_local_executor(config, make_test_backend(kind));
  EXPECT_TRUE(executor.ok()) << executor.status().message();
  if (!executor.ok()) return outcome;
  std::deque<StepPlan> plans;
  for (int32_t collected = 0, step = 0; collected < kSteps; ++collected) {
    for (; step < kSteps && plans.size() < in_flight; ++step) {
      std::vector<size_t> sequences;
      for (size_t i = 0; i < kSequences; ++i) {
        // As the engine does, of errors that it knows of.
        if (outcome.answers[i].error.empty() && (in_flight == 1 || asked(i).way != Way::kHost)) sequences.push_back(i);
      }
      plans.push_back(plan_of(step, sequences));
      (*executor)->submit(plans.back());
    }
    auto done = (*executor)->collect();
    EXPECT_TRUE(done.ok()) << done.status().message();
    plans.pop_front();
    outcome.host_rows += done->timings.host_rows;
    outcome.steps_ahead += done->timings.ahead ? 1 : 0;
    for (SequenceResult& result : done->result.sequences) {
      Answer& answer = outcome.answers[result.id];
      if (!answer.error.empty()) continue;  // planned before that was known
      answer.error = result.error.message();
      std::ranges::copy(result.tokens, std::back_inserter(answer.tokens));
      std::ranges::move(result.logprobs, std::back_inserter(answer.logprobs));
      std::ranges::move(result.prompt_logprobs, std::back_inserter(answer.prompt_logprobs));
    }
  }
  return outcome;
}

class DeviceSampling : public testing::TestWithParam<std::string> {};

TEST_P(DeviceSampling, TokensAndLogprobsAreTheHosts) {
  if (make_test_backend(GetParam()) == nullptr) GTEST_SKIP() << "this machine lacks " << GetParam();
  const Outcome expected = run("portable");
  const Outcome found = run(GetParam());
  int64_t least = 0;  // rows of the host
  int64_t most = 0;
  std::map<std::string, int> errors;
  for (size_t i = 0; i < kSequences; ++i) {
    SCOPED_TRACE(i);
    const Answer& answer = found.answers[i];
    EXPECT_EQ(answer.tokens, expected.answers[i].tokens);
    EXPECT_EQ(answer.error, expected.answers[i].error);
    expect_same_logprobs(answer.logprobs, expected.answers[i].logprobs);
    expect_same_logprobs(answer.prompt_logprobs, expected.answers[i].prompt_logprobs);
    ++errors[answer.error];
    const auto count = static_cast<int64_t>(answer.tokens.size());
    const Way way = asked(i).way;
    least += way == Way::kHost ? count : 0;
    most += way == Way::kDevice ? 0 : count;
  }
  EXPECT_GT(errors["the form is in trouble"], 0);
  EXPECT_EQ(errors.size(), 2u);
  // Of the others those whose first token was refused.
  EXPECT_GT(found.host_rows, least);
  EXPECT_LT(found.host_rows, most);
}

// Penalties and forms follow the tokens before them; the forward pass need not wait for that. A token that its form
// refuses was the next step's input by then: that step is computed again.
TEST_P(DeviceSampling, StepsAreLaunchedAheadOfTokensThatTheirEditsFollow) {
  if (make_test_backend(GetParam()) == nullptr) GTEST_SKIP() << "this machine lacks " << GetParam();
  const Outcome expected = run(GetParam());
  const Outcome found = run(GetParam(), /*in_flight=*/2);
  EXPECT_EQ(expected.steps_ahead, 0);
  EXPECT_EQ(found.steps_ahead, kSteps - 1);
  EXPECT_GT(found.host_rows, 0);  // of tokens that were refused
  for (size_t i = 0; i < kSequences; ++i) {
    if (asked(i).way == Way::kHost) continue;
    SCOPED_TRACE(i);
    EXPECT_EQ(found.answers[i].tokens, expected.answers[i].tokens);
    EXPECT_EQ(found.answers[i].error, expected.answers[i].error);
    expect_same_logprobs(found.answers[i].logprobs, expected.answers[i].logprobs);
    expect_same_logprobs(found.answers[i].prompt_logprobs, expected.answers[i].prompt_logprobs);
  }
}

// A few sequences of long prompts of different tokens, whose every token is penalised or biased.
class Penalised {
 public:
  static constexpr size_t kCount = 4;
  static constexpr int32_t kPrompt = 90;

  explicit Penalised(const std::string& kind) {
    EngineConfig config{.model = tiny_path("llama"), .skip_tokenizer_init = true, .num_gpu_blocks_override = 64};
    config.max_num_seqs = static_cast<int32_t>(kCount);
    config.max_num_batched_tokens = static_cast<int32_t>(kCount) * kPrompt;
    config.enforce_eager = true;
    auto executor = make_local_executor(config, make_test_backend(kind));
    EXPECT_TRUE(executor.ok()) << executor.status().message();
    if (executor.ok()) executor_ = std::move(*executor);
  }

  StepTimings step() {
    StepPlan plan;
    for (size_t i = 0; i < kCount; ++i) {
      if (step_ == 0) plan.added.push_back(added(i));
      const int32_t computed = step_ == 0 ? 0 : kPrompt + step_ - 1;
      plan.scheduled.push_back({.id = i,
                                .num_computed_tokens = computed,
                                .num_new_tokens = step_ == 0 ? kPrompt : 1,
                                .block_table = table(i),
                                .samples = true});
    }
    ++step_;
    executor_->submit(plan);
    auto done = executor_->collect();
    EXPECT_TRUE(done.ok()) << done.status().message();
    for (const SequenceResult& result : done->result.sequences) {
      EXPECT_TRUE(result.error.ok()) << result.error.message();
      std::ranges::copy(result.tokens, std::back_inserter(tokens_[result.id]));
    }
    return done->timings;
  }
  const std::map<SequenceId, std::vector<TokenId>>& tokens() const { return tokens_; }

 private:
  static NewSequence added(size_t i) {
    SamplingParams params{.temperature = 0, .frequency_penalty = 0.2f, .repetition_penalty = 1.3f};
    for (TokenId token = 0; token < 60; ++token) params.logit_bias.emplace_back(token, 0.1f);
    NewSequence one;
    one.id = i;
    for (int32_t at = 0; at < kPrompt; ++at) one.prompt.push_back(static_cast<TokenId>((7 * i + 5 * at) % kVocabSize));
    one.params = std::make_shared<const SamplingParams>(std::move(params));
    return one;
  }
  static std::vector<BlockId> table(size_t i) {
    constexpr size_t kBlocks = 8;  // of 16 tokens
    std::vector<BlockId> blocks;
    for (size_t b = 0; b < kBlocks; ++b) blocks.push_back(static_cast<BlockId>(kBlocks * i + b));
    return blocks;
  }

  std::unique_ptr<Executor> executor_;
  int32_t step_ = 0;
  std::map<SequenceId, std::vector<TokenId>> tokens_;
};

// What has been said and what is biased is told to the device once.
TEST_P(DeviceSampling, AStepSendsWhatHasChangedSinceTheOneBefore) {
  if (make_test_backend(GetParam()) == nullptr) GTEST_SKIP() << "this machine lacks " << GetParam();
  Penalised found(GetParam());
  Penalised expected("portable");
  const StepTimings first = found.step();
  expected.step();
  EXPECT_GT(first.draw_bytes, static_cast<int64_t>(Penalised::kCount * (Penalised::kPrompt + 60) * 8));
  for (int step = 1; step < 12; ++step) {
    const StepTimings steady = found.step();
    EXPECT_GT(steady.draw_bytes, 0);
    EXPECT_LE(steady.draw_bytes, static_cast<int64_t>(256 + Penalised::kCount * 96)) << step;
    EXPECT_EQ(expected.step().draw_bytes, 0) << "no device of its own";
  }
  EXPECT_EQ(found.tokens(), expected.tokens());
}

INSTANTIATE_TEST_SUITE_P(Cards, DeviceSampling, testing::Values("cuda"), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::runner
