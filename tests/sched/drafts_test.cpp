// Rule 8: draft tokens take what is left, and as many as are worth their cost.
#include <algorithm>

#include <gmock/gmock.h>

#include "sched/draft_gain.h"
#include "tests/sched/paged_driver.h"

namespace quire::sched {
namespace {

using testing_support::make_request;
using testing_support::PagedDriver;

constexpr TokenId kVocabulary = 1000;

// Knows what follows, up to a wrong token in every `wrong_every`; 0: never wrong.
class Oracle final : public DraftProposer {
 public:
  explicit Oracle(int wrong_every = 0) : wrong_every_(wrong_every) {}
  void propose(const DraftText& text, int32_t most, DraftProposal& proposal) override {
    ++num_asked;
    uint64_t digest = testing_support::Language::begin({});
    for (const TokenId token : text.tokens) digest = testing_support::Language::extend(digest, token);
    const testing_support::Language language{.vocabulary = kVocabulary};
    proposal.num_matched = 20;
    if (!text.prediction.empty()) proposal.source = DraftSource::kPrediction;
    for (int32_t i = 0; i < most; ++i) {
      TokenId token = language.next(digest, text.id * 7);
      digest = testing_support::Language::extend(digest, token);
      if (wrong_every_ > 0 && ++count_ % wrong_every_ == 0) token = (token + 1) % kVocabulary;
      proposal.tokens.push_back(token);
      proposal.agreement.push_back(1.0f);
    }
  }
  void ended(const DraftText&) override {}
  int num_asked = 0;

 private:
  const int wrong_every_;
  int count_ = 0;
};

// The same, of the first text drawn: from the token's number, modulo 3, and one choices, the first of which is the
// token.
class Drawing final : public DraftProposer {
 public:
  void propose(const DraftText& text, int32_t most, DraftProposal& proposal) override {
    EXPECT_NE(text.params, nullptr);
    oracle_.propose(text, most, proposal);
    if (text.id != 1) return;
    for (const TokenId token : proposal.tokens) {
      proposal.num_choices.push_back(token % 3 + 1);
      for (int32_t i = 0; i < token % 3 + 1; ++i) proposal.probabilities.push_back({token + i, 0.5f});
    }
  }
  void ended(const DraftText&) override {}

 private:
  Oracle oracle_;
};

// A model that knows what follows, and has to compute texts before.
class Computing final : public DraftProposer {
 public:
  explicit Computing(double seconds_before) : seconds_before_(seconds_before) {}
  void propose(const DraftText& text, int32_t most, DraftProposal& proposal) override {
    most = std::min(most, text.most_computed);
    if (most > 0) oracle_.propose(text, most, proposal);
    proposal.source = DraftSource::kModel;
  }
  void ended(const DraftText&) override {}
  bool computes() const override { return true; }
  double seconds_per_token() const override { return 0.1; }
  double seconds_before(const DraftText&) const override { return seconds_before_; }
  int num_asked() const { return oracle_.num_asked; }

 private:
  Oracle oracle_;
  const double seconds_before_;
};

SchedulerConfig drafting(int32_t most = 8) {
  SchedulerConfig config;
  config.max_model_len = 1000;
  config.num_blocks = 400;
  config.block_size = 4;
  config.max_draft_tokens = most;
  config.drafts_by_gain = false;
  return config;
}

// A step of x rows takes a + b x.
void teach(Scheduler& scheduler, double level, double row, std::initializer_list<int32_t> sizes) {
  for (int round = 0; round < 400; ++round) {
    for (const int32_t rows : sizes) {
      PlannedStep step;
      step.runs = {{.id = 1, .num_computed_tokens = 0, .num_new_tokens = rows}};
      scheduler.step_took(step, level + row * rows);
    }
  }
}

TEST(Drafts, AcceptedTokensSaveSteps) {
  Oracle oracle;
  PagedDriver driver(drafting(), kVocabulary);
  driver.scheduler.set_draft_proposer(&oracle);
  const SequenceRequest request = make_request(1, 5, 40);
  const std::vector<TokenId> expected = driver.alone(request, 40);
  ASSERT_TRUE(driver.add(request).ok());
  int steps = 0;
  while (driver.step()) ++steps;
  EXPECT_EQ(driver.answers[1].tokens, expected);
  EXPECT_EQ(steps, 5) << "nine tokens in each of the first four";
  const SchedulerStats stats = driver.scheduler.stats();
  EXPECT_EQ(stats.drafts, 5);
  EXPECT_EQ(stats.draft_tokens, 35);
  EXPECT_EQ(stats.accepted_draft_tokens, 35);
  EXPECT_EQ(stats.accepted_at[0], 5);
  EXPECT_EQ(stats.accepted_at[7], 4);
}

TEST(Drafts, WhatIsNotAcceptedGivesItsBlocksBackAndIsNotPublished) {
  Oracle wrong(1);
  PagedDriver driver(drafting(), kVocabulary);
  driver.scheduler.set_draft_proposer(&wrong);
  const SequenceRequest request = make_request(1, 6, 30);
  const std::vector<TokenId> expected = driver.alone(request, 30);
  ASSERT_TRUE(driver.add(request).ok());
  for (int token = 1; token <= 10; ++token) {
    ASSERT_TRUE(driver.plan_step());
    EXPECT_EQ(driver.plan.scheduled.front().num_draft_tokens, 8);
    EXPECT_EQ(driver.plan.num_tokens, driver.plan.scheduled.front().num_new_tokens + 8);
    driver.commit_step();
    EXPECT_EQ(driver.scheduler.stats().blocks_used, (5 + token + 3) / 4);
  }
  while (driver.step()) {
  }
  EXPECT_EQ(driver.answers[1].tokens, expected);
  EXPECT_EQ(driver.scheduler.stats().accepted_draft_tokens, 0);
  // The same prompt with the answer behind it finds what was accepted alone: no guess's block.
  SequenceRequest again = make_request(2, 6, 4);
  again.prompt.insert(again.prompt.end(), expected.begin(), expected.end());
  again.seed = 14;
  ASSERT_TRUE(driver.add(again).ok());
  ASSERT_TRUE(driver.run_to_end());
}

// A state is behind the last token before the drafts, so they end before its block does.
TEST(Drafts, BesideStatesStayInTheirBlockAndAreReplayed) {
  Oracle oracle;
  SchedulerConfig config = drafting();
  config.windows = {0, 2};
  config.keeps_states = true;
  config.block_size = 8;
  PagedDriver driver(config, kVocabulary);
  driver.scheduler.set_draft_proposer(&oracle);
  const SequenceRequest request = make_request(1, 5, 40);
  const std::vector<TokenId> expected = driver.alone(request, 40);
  ASSERT_TRUE(driver.add(request).ok());
  std::vector<std::vector<int32_t>> runs;  // where it begins, drafts, replayed
  while (driver.step()) {
    const ScheduledSequence& run = *driver.run_of(1);
    runs.push_back({run.num_computed_tokens, run.num_draft_tokens, run.num_replayed_tokens});
  }
  EXPECT_EQ(driver.answers.at(1).tokens, expected);
  ASSERT_GE(runs.size(), 5u);
  EXPECT_EQ(runs[0], (std::vector<int32_t>{0, 2, 0})) << "5 tokens of a prompt, and room for one more";
  EXPECT_EQ(runs[1], (std::vector<int32_t>{7, 0, 2})) << "the last of the block";
  EXPECT_EQ(runs[2], (std::vector<int32_t>{8, 6, 0}));
  EXPECT_EQ(runs[3], (std::vector<int32_t>{15, 0, 6}));
  EXPECT_EQ(runs[4], (std::vector<int32_t>{16, 6, 0}));
}

TEST(Drafts, AnswersEndInTheMiddleOfARun) {
  Oracle oracle;
  PagedDriver driver(drafting(20), kVocabulary);
  driver.scheduler.set_draft_proposer(&oracle);
  SequenceRequest request = make_request(1, 5, 40);
  const std::vector<TokenId> all = driver.alone(request, 40);
  SamplingParams params;
  params.max_tokens = 40;
  params.min_tokens = 4;
  params.stop_token_ids = std::vector<TokenId>{all[1], all[7], all[9]};
  request.params = std::make_shared<const SamplingParams>(params);
  ASSERT_TRUE(driver.add(request).ok());
  ASSERT_TRUE(driver.run_to_end());
  EXPECT_EQ(driver.answers[1].tokens, std::vector<TokenId>(all.begin(), all.begin() + 8));
  EXPECT_EQ(driver.answers[1].last.finish, FinishReason::kStop);
  EXPECT_EQ(driver.answers[1].last.stop_token, all[7]);
  EXPECT_EQ(driver.scheduler.stats().blocks_used, 0);
}

TEST(Drafts, TakeWhatIsLeftOfTheStepAndOfTheBlocksAndPreemptNobody) {
  Oracle oracle;
  SchedulerConfig config = drafting(8);
  config.max_num_batched_tokens = 6;
  config.num_blocks = 9;
  config.watermark = 0;
  PagedDriver driver(config, kVocabulary);
  driver.scheduler.set_draft_proposer(&oracle);
  ASSERT_TRUE(driver.add(make_request(1, 4, 12)).ok());
  ASSERT_TRUE(driver.add(make_request(2, 4, 12)).ok());
  int most = 0;
  while (driver.plan_step()) {
    EXPECT_LE(driver.plan.num_tokens, 6);
    for (const ScheduledSequence& run : driver.plan.scheduled) most = std::max(most, run.num_draft_tokens);
    driver.commit_step();
  }
  EXPECT_EQ(driver.answers[1].tokens, driver.alone(make_request(1, 4, 12), 12));
  EXPECT_EQ(driver.answers[2].tokens, driver.alone(make_request(2, 4, 12), 12));
  EXPECT_EQ(driver.scheduler.stats().preemptions, 0u);
  EXPECT_GT(most, 0);
}

TEST(Drafts, CarryWhatTheyWereDrawnFrom) {
  Drawing drawing;
  SchedulerConfig config = drafting(5);
  config.max_num_batched_tokens = 14;  // not all of what is proposed
  PagedDriver driver(config, kVocabulary);
  driver.scheduler.set_draft_proposer(&drawing);
  for (const SequenceId id : {2, 1, 3}) ASSERT_TRUE(driver.add(make_request(id, 4, 40)).ok());
  int drawn = 0;
  int mixed = 0;
  while (driver.plan_step()) {
    const StepPlan& plan = driver.plan;
    size_t token = 0;
    size_t choice = 0;
    for (const ScheduledSequence& run : plan.scheduled) {
      for (int32_t i = 0; i < run.num_draft_tokens; ++i, ++token) {
        const int32_t count = token < plan.draft_choices.size() ? plan.draft_choices[token] : 0;
        EXPECT_EQ(count, run.id == 1 ? plan.draft_tokens[token] % 3 + 1 : 0);
        if (count > 0) {
          EXPECT_EQ(plan.draft_probabilities[choice].token, plan.draft_tokens[token]);
        }
        choice += static_cast<size_t>(count);
        drawn += count > 0 ? 1 : 0;
        mixed += run.id != 1 ? 1 : 0;
      }
    }
    EXPECT_EQ(choice, plan.draft_probabilities.size());
    driver.commit_step();
  }
  EXPECT_GT(drawn, 10);
  EXPECT_GT(mixed, 10);
}

TEST(Drafts, ComeOnlyWhereNoTokenIsInFlight) {
  Oracle oracle;
  SchedulerConfig config = drafting(4);
  config.max_plans_in_flight = 2;
  PagedDriver driver(config, kVocabulary);
  driver.scheduler.set_draft_proposer(&oracle);
  ASSERT_TRUE(driver.add(make_request(1, 5, 30)).ok());
  ASSERT_TRUE(driver.plan_step());
  EXPECT_EQ(driver.plan.scheduled.front().num_draft_tokens, 4);
  EXPECT_FALSE(driver.plan_step()) << "nobody knows where the next run begins";
  driver.commit_step();
  ASSERT_TRUE(driver.run_to_end());
  EXPECT_EQ(driver.answers[1].tokens, driver.alone(make_request(1, 5, 30), 30));
}

// Guesses for tokens that are in flight tell that it is worth waiting for them.
TEST(Drafts, WhoWouldGainIsNotPlannedAheadOfItsResult) {
  for (const bool right : {true, false}) {
    Oracle oracle(right ? 0 : 1);
    SchedulerConfig config = drafting(6);
    config.drafts_by_gain = true;
    config.max_plans_in_flight = 2;
    PagedDriver driver(config, kVocabulary);
    teach(driver.scheduler, 3e-3, 1e-3, {1, 2, 4, 9});
    ASSERT_TRUE(driver.add(make_request(1, 5, 200)).ok());
    ASSERT_TRUE(driver.plan_step());
    ASSERT_TRUE(driver.plan_step());
    driver.scheduler.set_draft_proposer(&oracle);  // when its tokens are in flight already
    int64_t steps = 2;
    while (driver.scheduler.has_work()) {
      while (driver.plan_step()) ++steps;
      driver.commit_step();
    }
    EXPECT_EQ(driver.answers[1].tokens, driver.alone(make_request(1, 5, 200), 200));
    if (right) {
      EXPECT_LT(steps, 60);
    } else {
      EXPECT_LT(driver.scheduler.stats().draft_tokens, 40);
    }
  }
}

// The prompts of many make a step in which further rows are nothing, but each token of it will be one of a full batch.
TEST(Drafts, ThatAStepIsLongMakesThemNoCheaper) {
  Oracle oracle(3);
  SchedulerConfig config = drafting(8);
  config.drafts_by_gain = true;
  PagedDriver driver(config, kVocabulary);
  teach(driver.scheduler, 2e-3, 1e-3, {1, 2, 4, 9, 30, 60});
  driver.scheduler.set_draft_proposer(&oracle);
  for (SequenceId id = 1; id <= 24; ++id) ASSERT_TRUE(driver.add(make_request(id, 20, 12)).ok());
  ASSERT_TRUE(driver.plan_step());
  EXPECT_EQ(driver.plan.scheduled.size(), 24u);
  EXPECT_TRUE(driver.plan.draft_tokens.empty());
  driver.commit_step();
  ASSERT_TRUE(driver.run_to_end());
}

// Steps of one token take a second, further rows nothing: guesses at a tenth of a step pay at once, but not where the
// text has to be computed first for longer than the answer is likely to be.
TEST(Drafts, OfAModelArePaidForWithTheTextThatItHasNotComputed) {
  for (const double seconds_before : {0.0, 1.0, 1000.0}) {
    SchedulerConfig config = drafting(4);
    config.drafts_by_gain = true;
    Computing model(seconds_before);
    PagedDriver driver(config, kVocabulary);
    driver.scheduler.set_draft_proposer(&model);
    teach(driver.scheduler, 1.0, 0.01, {1, 2, 3, 4, 8});
    ASSERT_TRUE(driver.add(make_request(1, 5, 40)).ok());
    ASSERT_TRUE(driver.run_to_end());
    if (seconds_before < 1000) {
      EXPECT_GT(driver.scheduler.stats().accepted_draft_tokens, 20) << seconds_before;
    } else {
      EXPECT_EQ(model.num_asked(), 0);
    }
  }
}

TEST(Drafts, ARequestMayDoWithout) {
  Oracle oracle;
  PagedDriver driver(drafting(), kVocabulary);
  driver.scheduler.set_draft_proposer(&oracle);
  SequenceRequest request = make_request(1, 5, 10);
  request.takes_drafts = false;
  ASSERT_TRUE(driver.add(request).ok());
  ASSERT_TRUE(driver.run_to_end());
  EXPECT_EQ(driver.scheduler.stats().drafts, 0);
  EXPECT_EQ(oracle.num_asked, 0);
}

TEST(Drafts, OfAPredictionAreCountedForTheRequest) {
  Oracle oracle(5);
  PagedDriver driver(drafting(), kVocabulary);
  driver.scheduler.set_draft_proposer(&oracle);
  SequenceRequest request = make_request(1, 5, 40);
  request.prediction = std::make_shared<const std::vector<TokenId>>(std::vector<TokenId>{1});
  ASSERT_TRUE(driver.add(request).ok());
  int32_t accepted = 0;
  int32_t rejected = 0;
  while (driver.step()) {
    accepted += driver.answers[1].last.num_predicted_tokens;
    rejected += driver.answers[1].last.num_mispredicted_tokens;
  }
  const SchedulerStats stats = driver.scheduler.stats();
  EXPECT_EQ(accepted, stats.accepted_draft_tokens);
  EXPECT_EQ(accepted + rejected, stats.draft_tokens);
  EXPECT_GT(rejected, 0);
}

// ---- how many ----

DraftProposal sure(int32_t length) {
  DraftProposal proposal;
  proposal.tokens.assign(static_cast<size_t>(length), 5);
  proposal.agreement.assign(static_cast<size_t>(length), 1.0f);
  proposal.num_matched = 20;
  return proposal;
}

int32_t granted(const StepCost& cost, const DraftRates& rates, int32_t sequences, int32_t length = 16) {
  const DraftProposal proposal = sure(length);
  std::vector<DraftBid> bids(static_cast<size_t>(sequences), {.proposal = &proposal, .rates = &rates, .most = length});
  grant_drafts(bids, rates, cost, sequences, sequences, 1000);
  int32_t sum = 0;
  for (const DraftBid& bid : bids) sum += bid.granted;
  return sum;
}

StepCost cost_of_rows(double level, double row) {
  StepCost cost;
  for (int i = 0; i < 2000; ++i) {
    for (const double rows : {1.0, 2.0, 5.0, 9.0, 30.0}) cost.observe(rows, level + row * rows);
  }
  return cost;
}

DraftRates right_in(int of_ten) {
  DraftRates rates;
  for (int i = 0; i < 1000; ++i) rates.observe(20, 1.0f, DraftSource::kText, i % 10 < of_ten);
  return rates;
}

double row_of(const StepCost& cost, double from, double to) {
  return (cost.relative(to) - cost.relative(from)) / (to - from);
}

TEST(DraftGain, LearnsWhatARowCosts) {
  for (const auto& [level, row] : {std::pair(6e-3, 1e-3), {2e-3, 1e-3}, {1e-4, 1e-3}}) {
    const StepCost cost = cost_of_rows(level, row);
    EXPECT_NEAR(row_of(cost, 1, 9) * (level + row) / row, 1, 0.1) << level;
    EXPECT_NEAR(row_of(cost, 1, 30) * (level + row) / row, 1, 0.1) << level;
  }
  // A machine that is twice as slow for a while has the same shape.
  StepCost cost = cost_of_rows(6e-3, 1e-3);
  for (int i = 0; i < 80; ++i) cost.observe(1, 14e-3);
  EXPECT_NEAR(row_of(cost, 1, 9), 1.0 / 7, 0.02);
  EXPECT_NEAR(cost.seconds(), 14e-3, 1e-3);
}

// Weights are read for the first rows, whatever they compute.
TEST(DraftGain, LearnsThatTheFirstRowsAreFree) {
  StepCost cost;
  for (int i = 0; i < 3000; ++i) {
    for (const double rows : {1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 16.0, 32.0}) {
      cost.observe(rows, std::max(3.5e-3, 0.9e-3 * rows));
    }
  }
  EXPECT_NEAR(cost.relative(2), 1, 0.06);
  EXPECT_NEAR(cost.relative(3), 1, 0.06);
  EXPECT_NEAR(cost.relative(8), 0.9 * 8 / 3.5, 0.12);
  EXPECT_NEAR(cost.relative(32), 0.9 * 32 / 3.5, 0.6);
  const DraftProposal proposal = sure(16);
  const DraftRates unlikely = right_in(2);
  std::vector<DraftBid> bids = {{.proposal = &proposal, .rates = &unlikely, .most = 16}};
  grant_drafts(bids, unlikely, cost, 1, 1, 1000);
  EXPECT_GE(bids[0].granted, 1) << "what costs nothing may be unlikely";
  EXPECT_LE(bids[0].granted, 3);
}

TEST(DraftGain, ManyWhereRowsAreNextToFreeFewWhereTheyAreDearNoneWhereTheyCostATokenEach) {
  EXPECT_EQ(granted(cost_of_rows(10e-3, 1e-4), right_in(10), 1), 16);
  EXPECT_GE(granted(cost_of_rows(2e-3, 1e-3), right_in(10), 1), 8);
  EXPECT_LE(granted(cost_of_rows(2e-3, 1e-3), right_in(7), 1), 4);
  EXPECT_EQ(granted(cost_of_rows(2e-3, 1e-3), right_in(2), 1), 0);
  EXPECT_EQ(granted(cost_of_rows(2e-3, 1e-3), right_in(9), 32), 0) << "a full batch";
  EXPECT_EQ(granted(cost_of_rows(1e-5, 1e-3), right_in(9), 1), 0) << "a machine bound by arithmetic";
}

// Whatever is granted, the expected rate is at least that without.
TEST(DraftGain, NeverExpectsToLose) {
  for (const double row : {1e-5, 1e-4, 3e-4, 1e-3, 3e-3}) {
    const StepCost cost = cost_of_rows(3e-3, row);
    for (int right = 0; right <= 10; ++right) {
      for (const int32_t sequences : {1, 2, 4, 8, 16, 32, 64}) {
        const DraftRates rates = right_in(right);
        const DraftProposal proposal = sure(16);
        std::vector<DraftBid> bids(static_cast<size_t>(sequences),
                                   {.proposal = &proposal, .rates = &rates, .most = 16});
        grant_drafts(bids, rates, cost, sequences, sequences, 1000);
        double tokens = sequences;
        double rows = sequences;
        for (const DraftBid& bid : bids) {
          double chance = 1;
          for (int32_t i = 0; i < bid.granted; ++i)
            tokens += chance *= rates.rate(20 + i, 1.0f, DraftSource::kText, &rates);
          rows += bid.granted;
        }
        EXPECT_GE(tokens / cost.relative(rows), sequences / cost.relative(sequences))
            << "row " << row << ", right " << right << ", sequences " << sequences;
      }
    }
  }
}

TEST(DraftGain, RatesFollowWhatHappensToTheSequence) {
  const DraftRates all = right_in(9);
  DraftRates own;
  EXPECT_NEAR(own.rate(20, 1.0f, DraftSource::kText, &all), 0.9, 0.05);
  for (int i = 0; i < 8; ++i) own.observe(20, 1.0f, DraftSource::kText, false);
  EXPECT_LT(own.rate(20, 1.0f, DraftSource::kText, &all), 0.3);
  EXPECT_GT(own.rate(20, 1.0f, DraftSource::kPrediction, &all), 0.7) << "a prediction is another matter";
  for (int i = 0; i < 64; ++i) own.observe(20, 1.0f, DraftSource::kText, true);
  EXPECT_GT(own.rate(20, 1.0f, DraftSource::kText, &all), 0.8) << "what is long ago is forgotten";
}

// Of a model whose guess takes a quarter of a step.
TEST(DraftGain, AModelGuessesAsMuchAsItsOwnTimeIsWorth) {
  const StepCost dear_steps = cost_of_rows(20e-3, 5e-4);
  const auto worth = [&](int32_t sampling, double each, double rate) {
    return worth_computing(dear_steps, sampling, sampling, sampling, 1, {.each = each}, rate, 8);
  };
  EXPECT_GE(worth(1, 0.1, 0.95), 5);
  EXPECT_GE(worth(1, 0.25, 0.9), 2);
  EXPECT_EQ(worth(1, 0.25, 0.2), 0);
  EXPECT_EQ(worth(1, 1.2, 0.95), 0) << "it is slower than the model that it guesses for";
  EXPECT_EQ(worth(8, 0.25, 0.9), 0) << "for eight one after the other";
  // Of one pass for any number of guesses, what it takes is no reason for fewer.
  const auto at_once = [&](double once, double rate) {
    return worth_computing(dear_steps, 1, 1, 1, 1, {.once = once}, rate, 8);
  };
  EXPECT_EQ(at_once(0.3, 0.95), 8);
  EXPECT_GT(at_once(0.3, 0.8), worth(1, 0.3, 0.8));
  EXPECT_EQ(at_once(0.8, 0.3), 0);
  EXPECT_EQ(at_once(9, 1), 0);
  DraftRates own;
  EXPECT_NEAR(own.rate_of_model(nullptr), 0.7, 0.01);
  for (int i = 0; i < 40; ++i) own.observe(0, 0.5f, DraftSource::kModel, false);
  EXPECT_LT(own.rate_of_model(nullptr), 0.2);
}

// Guesses that are not computed are told by what comes: a sequence goes from quiet to many without a try.
TEST(DraftGain, ASequenceThatIsQuietGoesOnLearning) {
  Oracle wrong(1);
  Oracle oracle;
  SchedulerConfig config = drafting();
  config.drafts_by_gain = true;
  PagedDriver driver(config, kVocabulary);
  teach(driver.scheduler, 3e-3, 1e-3, {1, 2, 4, 9});
  driver.scheduler.set_draft_proposer(&wrong);
  ASSERT_TRUE(driver.add(make_request(1, 5, 400)).ok());
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(driver.step());
  const int64_t in_vain = driver.scheduler.stats().draft_tokens;
  EXPECT_LT(in_vain, 40);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(driver.step());
  EXPECT_EQ(driver.scheduler.stats().draft_tokens, in_vain) << "it has gone quiet";
  driver.scheduler.set_draft_proposer(&oracle);
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(driver.step());
  EXPECT_GT(driver.scheduler.stats().accepted_draft_tokens, 20);
  EXPECT_EQ(driver.scheduler.stats().draft_tokens, in_vain + driver.scheduler.stats().accepted_draft_tokens);
}

}  // namespace
}  // namespace quire::sched
