// Rows that are drawn where the logits lie beside the same rows drawn by the host: many at once, in more pieces than
// one, of requests of all kinds.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>

#include "runner/local_executor.h"
#include "runner/model_runner.h"
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
      return fails && had == 3 ? invalid_argument("the constraint is in trouble") : Status();
    }
    bool fails;
    int had = 0;
  };
  const bool fails_;
};

enum class Way { kDevice, kHost, kEither };

struct Asked {
  SamplingParams params;
  std::shared_ptr<const TokenConstraint> constraint;
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
  if (i % 11 == 4) one.constraint = std::make_shared<Refusing>(i % 2 == 0);
  if (i % 11 == 4) one.way = Way::kEither;
  if (i % 13 == 5) p.xtc_probability = 0.5f;
  if (i % 13 == 6) p.logprobs = i % 2 == 0 ? -1 : 33;
  if ((i % 13 == 5 && !p.greedy()) || i % 13 == 6) one.way = Way::kHost;
  return one;
}

// Where the constraint of sequence i is number i + 1.
struct Constraints final : ConstraintSource {
  std::shared_ptr<const TokenMasks> find(ConstraintId id) const override { return asked(id - 1).constraint; }
};

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
      if (asked(i).constraint != nullptr) added.constraint = i + 1;
      added.seed = i;
    }
    plan.scheduled.push_back({.id = i,
                              .num_computed_tokens = step == 0 ? 0 : prompt + step - 1,
                              .num_new_tokens = step == 0 ? prompt : 1,
                              .samples = true});
    tell_whole_table(plan, i, 0, std::vector<BlockId>{static_cast<BlockId>(i)});
  }
  return plan;
}

// In flight: steps that are submitted before the first of them is collected. With two, rows that only the host can
// sample from, which hold up the step after them, are left out.
Outcome run(const std::string& kind, size_t in_flight = 1) {
  Outcome outcome;
  EngineConfig config{.model = tiny_path("llama"), .skip_tokenizer_init = true, .num_gpu_blocks_override = 128};
  config.max_num_seqs = static_cast<int32_t>(kSequences);
  config.max_num_batched_tokens = 400;  // a step of so many is run at start, which takes an emulated device a while
  config.enforce_eager = true;
  auto executor = make_local_executor(config, make_test_backend(kind));
  EXPECT_TRUE(executor.ok()) << executor.status().message();
  if (!executor.ok()) return outcome;
  (*executor)->use_constraints(std::make_shared<const Constraints>());
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
  EXPECT_GT(errors["the constraint is in trouble"], 0);
  EXPECT_EQ(errors.size(), 2u);
  // Of the others those whose first token was refused.
  EXPECT_GT(found.host_rows, least);
  EXPECT_LT(found.host_rows, most);
}

// Penalties and constraints follow the tokens before them; the forward pass need not wait for that. A token that its
// constraint refuses was the next step's input by then: that step is computed again.
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

constexpr int32_t kPenalisedPrompt = 90;
constexpr size_t kPenalisedBlocks = 8;  // of 16 tokens, of each sequence

// A sequence whose prompt's tokens are different and penalised, and some of them biased.
NewSequence penalised_sequence(size_t i) {
  SamplingParams params{.temperature = 0, .frequency_penalty = 0.2f, .repetition_penalty = 1.3f};
  for (TokenId token = 0; token < 60; ++token) params.logit_bias.emplace_back(token, 0.1f);
  NewSequence one;
  one.id = i;
  for (size_t at = 0; at < kPenalisedPrompt; ++at) {
    one.prompt.push_back(static_cast<TokenId>((7 * i + 5 * at) % kVocabSize));
  }
  one.params = std::make_shared<const SamplingParams>(std::move(params));
  return one;
}

void schedule_penalised(StepPlan& plan, size_t i, int32_t computed, int32_t count) {
  plan.scheduled.push_back({.id = i, .num_computed_tokens = computed, .num_new_tokens = count, .samples = true});
  std::vector<BlockId> table;
  for (size_t b = 0; b < kPenalisedBlocks; ++b) table.push_back(static_cast<BlockId>(kPenalisedBlocks * i + b));
  tell_whole_table(plan, i, 0, table);
}

// Some such sequences, of which not all are in each step.
class Penalised {
 public:
  Penalised(const std::string& kind, size_t count, size_t at_once) {
    EngineConfig config{.model = tiny_path("llama"), .skip_tokenizer_init = true};
    config.num_gpu_blocks_override = static_cast<int64_t>(kPenalisedBlocks * count);
    config.max_num_seqs = static_cast<int32_t>(at_once);
    config.max_num_batched_tokens = static_cast<int32_t>(at_once) * (kPenalisedPrompt + 8);
    config.enforce_eager = true;
    auto executor = make_local_executor(config, make_test_backend(kind));
    EXPECT_TRUE(executor.ok()) << executor.status().message();
    if (executor.ok()) executor_ = std::move(*executor);
  }

  // again: as after a preemption, all tokens are computed once more.
  StepTimings step(const std::vector<size_t>& sequences, bool again = false) {
    StepPlan plan;
    for (const size_t i : sequences) {
      const auto had = static_cast<int32_t>(tokens_[i].size());
      if (had == 0) plan.added.push_back(penalised_sequence(i));
      const int32_t computed = had == 0 || again ? 0 : kPenalisedPrompt + had - 1;
      schedule_penalised(plan, i, computed, kPenalisedPrompt + had - computed);
      plan.num_tokens += plan.scheduled.back().num_new_tokens;
    }
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
  std::unique_ptr<Executor> executor_;
  std::map<SequenceId, std::vector<TokenId>> tokens_;
};

// What has been said and what is biased is told to the device once.
TEST_P(DeviceSampling, AStepSendsWhatHasChangedSinceTheOneBefore) {
  if (make_test_backend(GetParam()) == nullptr) GTEST_SKIP() << "this machine lacks " << GetParam();
  const std::vector<size_t> all = {0, 1, 2, 3};
  Penalised found(GetParam(), all.size(), all.size());
  Penalised expected("portable", all.size(), all.size());
  const int64_t first = found.step(all).draw_bytes;
  expected.step(all);
  EXPECT_GT(first, static_cast<int64_t>(all.size() * (kPenalisedPrompt + 60) * 8));
  for (int step = 1; step < 12; ++step) {
    const StepTimings steady = found.step(all);
    EXPECT_GT(steady.draw_bytes, 0);
    EXPECT_LE(steady.draw_bytes, static_cast<int64_t>(256 + all.size() * 96)) << step;
    EXPECT_EQ(expected.step(all).draw_bytes, 0) << "no device of its own";
  }
  EXPECT_EQ(found.tokens(), expected.tokens());
}

// More than there is room for on the device take turns, some as after a preemption.
TEST_P(DeviceSampling, SequencesWhosePlaceWasTakenAreToldToTheDeviceOnceMore) {
  if (make_test_backend(GetParam()) == nullptr) GTEST_SKIP() << "this machine lacks " << GetParam();
  constexpr size_t kCount = 24;
  Penalised found(GetParam(), kCount, 2);
  Penalised expected("portable", kCount, 2);
  const auto whole = static_cast<int64_t>(2 * kPenalisedPrompt * sizeof(ops::ListedToken));
  for (size_t round = 0; round < 3; ++round) {
    for (size_t i = 0; i < kCount; i += 2) {
      const bool again = round == 2 && i % 4 == 0;
      EXPECT_GT(found.step({i, i + 1}, again).draw_bytes, whole) << "others have had its place since";
      expected.step({i, i + 1}, again);
      // Its lists are there now.
      EXPECT_LT(found.step({i, i + 1}).draw_bytes, whole);
      expected.step({i, i + 1});
    }
  }
  EXPECT_EQ(found.tokens(), expected.tokens());
}

// The device has drawn the token that is to be counted: the draw need not wait until the host has seen it.
TEST_P(DeviceSampling, PenaltiesDoNotHoldUpTheDrawsOfAStepThatIsLaunchedAhead) {
  const auto backend = make_test_backend(GetParam());
  if (backend == nullptr) GTEST_SKIP() << "this machine lacks " << GetParam();
  constexpr int32_t kLaunched = 10;
  auto checkpoint = checkpoint::Checkpoint::open(tiny_path("llama"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EngineConfig config{.num_gpu_blocks_override = kPenalisedBlocks};
  config.max_num_seqs = 1;
  config.max_num_batched_tokens = kPenalisedPrompt;
  config.enforce_eager = true;
  auto planned = plan_model(config, **checkpoint, *backend, 0);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  nn::Loader loader(nn::Loader::Mode::kLoad, **checkpoint, *backend);
  auto model = planned->family.build(planned->config, planned->max_model_len, loader);
  ASSERT_TRUE(model.ok()) << model.status().message();
  auto runner = ModelRunner::create(*planned, std::move(*model), *backend);
  ASSERT_TRUE(runner.ok()) << runner.status().message();

  std::deque<StepPlan> plans;
  std::vector<TokenId> tokens;
  const auto finish = [&] {
    const ExecutedStep done = (*runner)->finish();
    ASSERT_TRUE(done.result.sequences.front().error.ok());
    tokens.push_back(done.result.sequences.front().tokens.at(0));
  };
  for (int32_t step = 0; step < kLaunched; ++step) {
    StepPlan& plan = plans.emplace_back();
    if (step == 0) plan.added.push_back(penalised_sequence(0));
    schedule_penalised(plan, 0, step == 0 ? 0 : kPenalisedPrompt + step - 1, step == 0 ? kPenalisedPrompt : 1);
    ASSERT_TRUE((*runner)->may_launch()) << "the tokens of step " << step - 1 << " are not chosen yet";
    (*runner)->launch(plan);
    if (step > 0) finish();
  }
  finish();
  Penalised expected("portable", 1, 1);
  for (int32_t step = 0; step < kLaunched; ++step) expected.step({0});
  EXPECT_EQ(tokens, expected.tokens().at(0));
}

INSTANTIATE_TEST_SUITE_P(Cards, DeviceSampling, testing::Values("cuda"), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::runner
