#include "sched/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sched/scheduler_harness.h"

namespace quire::sched {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing_support::Driver;
using testing_support::make_request;

SchedulerConfig small_config() {
  SchedulerConfig config;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 16;
  config.max_model_len = 64;
  config.num_blocks = 16;
  config.block_size = 4;
  config.prefix_caching = false;  // the prompts of these tests begin alike
  config.watermark = 0;
  return config;
}

// (id, computed before, new tokens, samples)
auto run_is(SequenceId id, int computed, int fresh, bool samples) {
  return AllOf(Field("id", &ScheduledSequence::id, id),
               Field("num_computed_tokens", &ScheduledSequence::num_computed_tokens, computed),
               Field("num_new_tokens", &ScheduledSequence::num_new_tokens, fresh),
               Field("samples", &ScheduledSequence::samples, samples));
}

// ---- configuration and admission to the queue ----

TEST(SchedulerConfig, EveryFieldMustBeAtLeastOne) {
  EXPECT_TRUE(validate(small_config()).ok());
  for (auto field : {&SchedulerConfig::max_num_seqs, &SchedulerConfig::max_num_batched_tokens,
                     &SchedulerConfig::max_model_len, &SchedulerConfig::num_blocks, &SchedulerConfig::block_size}) {
    SchedulerConfig config = small_config();
    config.*field = 0;
    EXPECT_EQ(validate(config).code(), StatusCode::kInvalidArgument);
    config.*field = -5;
    EXPECT_FALSE(validate(config).param().empty());
  }
}

TEST(SchedulerAdd, AnEmptyPromptIsRefused) {
  Driver driver(small_config());
  const Status status = driver.scheduler.add(make_request(1, 0, 4));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.param(), "prompt");
  EXPECT_FALSE(driver.scheduler.has_work());
}

TEST(SchedulerAdd, APromptMustLeaveTheContextRoomForOneToken) {
  Driver driver(small_config());
  EXPECT_TRUE(driver.scheduler.add(make_request(1, 63, 1)).ok());
  const Status status = driver.scheduler.add(make_request(2, 64, 1));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("64 tokens leaves room for a prompt of at most 63"));
}

TEST(SchedulerAdd, APromptThatIsOnlyScoredMayFillTheContext) {
  Driver driver(small_config());
  EXPECT_TRUE(driver.scheduler.add(make_request(1, 64, 0)).ok());
  EXPECT_FALSE(driver.scheduler.add(make_request(2, 65, 0)).ok());
  EXPECT_GT(driver.run_to_end(), 0);
  EXPECT_EQ(driver.answers[1].last.finish, FinishReason::kLength);
  EXPECT_THAT(driver.answers[1].tokens, IsEmpty());
}

TEST(SchedulerAdd, ARequestThatCanNeverFitIntoThePoolIsRefusedNotQueued) {
  SchedulerConfig config = small_config();
  config.num_blocks = 3;  // 12 tokens; the last sampled one needs no room
  Driver driver(config);
  EXPECT_TRUE(driver.scheduler.add(make_request(1, 5, 8)).ok());
  const Status status = driver.scheduler.add(make_request(2, 5, 9));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.param(), "max_tokens");
  EXPECT_THAT(status.message(), HasSubstr("needs 4 KV cache blocks"));
  EXPECT_GT(driver.run_to_end(), 0);
  EXPECT_THAT(driver.answers[1].tokens, SizeIs(8));
}

TEST(SchedulerAdd, TheNeedIsCappedByTheContext) {
  SchedulerConfig config = small_config();
  config.max_model_len = 12;
  config.num_blocks = 3;
  Driver driver(config);
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 5, 1000000)).ok());
  EXPECT_GT(driver.run_to_end(), 0);
  EXPECT_THAT(driver.answers[1].tokens, SizeIs(7));
  EXPECT_EQ(driver.answers[1].last.finish, FinishReason::kLength);
}

TEST(SchedulerAdd, WithoutMaxTokensTheAnswerGrowsAsFarAsContextOrPoolReach) {
  SamplingParams params;
  params.max_tokens = std::nullopt;
  Driver context_bound(small_config());
  ASSERT_TRUE(context_bound.scheduler.add(make_request(1, 10, params)).ok());
  EXPECT_GT(context_bound.run_to_end(), 0);
  EXPECT_THAT(context_bound.answers[1].tokens, SizeIs(54));

  SchedulerConfig config = small_config();
  config.num_blocks = 4;
  Driver pool_bound(config);
  ASSERT_TRUE(pool_bound.scheduler.add(make_request(1, 10, params)).ok());
  EXPECT_FALSE(pool_bound.scheduler.check_fits(17, params).ok());
  EXPECT_TRUE(pool_bound.scheduler.check_fits(16, params).ok());
  EXPECT_GT(pool_bound.run_to_end(), 0);
  EXPECT_THAT(pool_bound.answers[1].tokens, SizeIs(7));
  EXPECT_EQ(pool_bound.answers[1].last.finish, FinishReason::kLength);
}

// T2
TEST(SchedulerAdd, APromptOfMoreTokensThan31BitsCountIsRefused) {
  const Driver driver(small_config());
  const SamplingParams params = *make_request(1, 4, 1).params;
  for (const int64_t count :
       {(int64_t{1} << 31) - 1, int64_t{1} << 31, (int64_t{1} << 32) + 5, (int64_t{1} << 62) + 5}) {
    EXPECT_EQ(driver.scheduler.check_fits(count, params).code(), StatusCode::kInvalidArgument) << count;
  }
  EXPECT_TRUE(driver.scheduler.check_fits(5, params).ok());
}

TEST(SchedulerAdd, HugeMaxTokensDoNotOverflow) {
  Driver driver(small_config());
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 10, 2147483647)).ok());
  EXPECT_GT(driver.run_to_end(), 0);
  EXPECT_THAT(driver.answers[1].tokens, SizeIs(54));
}

// ---- the plan ----

TEST(SchedulerPlan, WithoutWorkThereIsNoPlan) {
  Driver driver(small_config());
  EXPECT_FALSE(driver.scheduler.has_work());
  EXPECT_FALSE(driver.scheduler.schedule(driver.plan));
  EXPECT_THAT(driver.plan.scheduled, IsEmpty());
}

TEST(SchedulerPlan, ASequenceIsIntroducedOnceWithAllTheRunnerNeeds) {
  Driver driver(small_config());
  SequenceRequest request = make_request(9, 3, 4);
  request.eos_ids = {2, 5};
  SamplingParams params;
  params.min_tokens = 1;  // until which the end ids are banned
  params.stop_token_ids = {5, 6};
  request.params = std::make_shared<const SamplingParams>(params);
  ASSERT_TRUE(driver.scheduler.add(request).ok());
  ASSERT_TRUE(driver.step());
  ASSERT_THAT(driver.plan.added, SizeIs(1));
  EXPECT_EQ(driver.plan.added[0].id, 9u);
  EXPECT_THAT(driver.plan.added[0].prompt, ElementsAre(1000, 1001, 1002));
  EXPECT_EQ(driver.plan.added[0].seed, 63u);
  EXPECT_EQ(driver.plan.added[0].params, request.params);
  EXPECT_THAT(driver.plan.added[0].eos_ids, ElementsAre(2, 5));
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.added, IsEmpty());
}

TEST(SchedulerPlan, ALongPromptIsComputedInChunksOfTheBudget) {
  Driver driver(small_config());
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 40, 2)).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled, ElementsAre(run_is(1, 0, 16, false)));
  EXPECT_THAT(driver.tables[1].table(0), SizeIs(4));
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled, ElementsAre(run_is(1, 16, 16, false)));
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled, ElementsAre(run_is(1, 32, 8, true)));
  EXPECT_EQ(driver.plan.num_tokens, 8);
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled, ElementsAre(run_is(1, 40, 1, true)));
  EXPECT_FALSE(driver.step());
  EXPECT_THAT(driver.answers[1].tokens, ElementsAre(100, 101));
}

TEST(SchedulerPlan, ABudgetOfOneTokenStillEndsEverySequence) {
  SchedulerConfig config = small_config();
  config.max_num_batched_tokens = 1;
  Driver driver(config);
  for (SequenceId id = 1; id <= 3; ++id) {
    ASSERT_TRUE(driver.scheduler.add(make_request(id, 5, 3)).ok());
  }
  EXPECT_EQ(driver.run_to_end(), 3 * (5 + 2));
}

TEST(SchedulerPlan, DecodesComeBeforeNewPromptsAndShareOneBudget) {
  Driver driver(small_config());
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 4, 8)).ok());
  ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.scheduler.add(make_request(2, 30, 4)).ok());
  ASSERT_TRUE(driver.scheduler.add(make_request(3, 3, 4)).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled, ElementsAre(run_is(1, 4, 1, true), run_is(2, 0, 15, false)));
  EXPECT_EQ(driver.plan.num_tokens, 16);
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled, ElementsAre(run_is(1, 5, 1, true), run_is(2, 15, 15, true)));
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled, ElementsAre(run_is(1, 6, 1, true), run_is(2, 30, 1, true), run_is(3, 0, 3, true)));
}

TEST(SchedulerPlan, NoMoreThanMaxNumSeqsRun) {
  SchedulerConfig config = small_config();
  config.max_num_seqs = 2;
  Driver driver(config);
  for (SequenceId id = 1; id <= 3; ++id) {
    ASSERT_TRUE(driver.scheduler.add(make_request(id, 2, static_cast<int>(id))).ok());
  }
  ASSERT_TRUE(driver.step());  // 1 ends here
  EXPECT_THAT(driver.plan.scheduled, SizeIs(2));
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled, ElementsAre(run_is(2, 2, 1, true), run_is(3, 0, 2, true)));
}

TEST(SchedulerPlan, ABlockIsTakenExactlyWhenATokenNeedsIt) {
  Driver driver(small_config());  // blocks of 4
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 4, 10)).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.tables[1].table(0), SizeIs(1));
  for (int step = 0; step < 4; ++step) {
    ASSERT_TRUE(driver.step());
    EXPECT_THAT(driver.tables[1].table(0), SizeIs(2));
  }
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.tables[1].table(0), SizeIs(3));
  EXPECT_EQ(driver.scheduler.stats().blocks_used, 3);
}

TEST(SchedulerPlan, ATableIsToldWholeOnceAndThenOnlyWhatIsNewOfIt) {
  Driver driver(small_config());  // blocks of 4
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 10, 4)).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.table_changes, ElementsAre(TableChange{.id = 1, .num_blocks = 3, .first = 0, .count = 3}));
  EXPECT_THAT(driver.plan.table_blocks, SizeIs(3));
  for (int step = 0; step < 2; ++step) {
    ASSERT_TRUE(driver.step());
    EXPECT_THAT(driver.plan.table_changes, IsEmpty());
    EXPECT_THAT(driver.plan.table_blocks, IsEmpty());
  }
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.table_changes, ElementsAre(TableChange{.id = 1, .num_blocks = 4, .first = 3, .count = 1}));
  EXPECT_THAT(driver.plan.table_blocks, SizeIs(1));
}

TEST(SchedulerPlan, ABlockBehindTheWindowIsToldToBeGone) {
  SchedulerConfig config = small_config();
  config.windows = {4};
  Driver driver(config);
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 7, 6)).ok());
  ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.step());  // position 7 sees those from 4 on
  EXPECT_THAT(driver.plan.table_changes, ElementsAre(TableChange{.id = 1, .num_blocks = 2, .first = 0, .count = 1}));
  EXPECT_THAT(driver.plan.table_blocks, ElementsAre(kNoBlock));
}

TEST(SchedulerPlan, AnAnswerThatEndsAtABlockBoundaryTakesNoBlockMore) {
  SchedulerConfig config = small_config();
  config.num_blocks = 2;
  Driver driver(config);
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 4, 5)).ok());  // 8 computed, 9 known
  EXPECT_EQ(driver.run_to_end(), 5);
  EXPECT_EQ(driver.scheduler.stats().preemptions, 0u);
  EXPECT_FALSE(driver.scheduler.check_fits(4, *make_request(2, 4, 6).params).ok());
}

// ---- admission beside the running ----

TEST(SchedulerAdmission, AWaitingSequenceIsAdmittedOnlyWhenItsWholePromptFindsRoom) {
  SchedulerConfig config = small_config();
  config.num_blocks = 8;
  Driver driver(config);
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 12, 3)).ok());  // 3 blocks, then a 4th
  ASSERT_TRUE(driver.scheduler.add(make_request(2, 20, 2)).ok());  // 5 blocks: 4 are left
  ASSERT_TRUE(driver.scheduler.add(make_request(3, 1, 1)).ok());   // would fit, but must not overtake
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled, ElementsAre(run_is(1, 0, 12, true)));
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled, ElementsAre(run_is(1, 12, 1, true)));
  ASSERT_TRUE(driver.step());  // 1 ends
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled, ElementsAre(run_is(2, 0, 16, false)));
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled, ElementsAre(run_is(2, 16, 4, true), run_is(3, 0, 1, true)));
  EXPECT_GT(driver.run_to_end(), 0);
  EXPECT_EQ(driver.scheduler.stats().preemptions, 0u);
}

TEST(SchedulerAdmission, TwoThatFillThePoolExactlyRunTogether) {
  SchedulerConfig config = small_config();
  config.num_blocks = 6;
  Driver driver(config);
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 6, 7)).ok());
  ASSERT_TRUE(driver.scheduler.add(make_request(2, 6, 7)).ok());
  EXPECT_EQ(driver.run_to_end(), 7);
  EXPECT_EQ(driver.scheduler.stats().preemptions, 0u);
}

// ---- preemption ----

struct Preemption : testing::Test {
  Preemption() : driver(config()) {
    // Each needs 8 blocks in the end; the pool has 12.
    for (SequenceId id = 1; id <= 3; ++id) {
      EXPECT_TRUE(driver.scheduler.add(make_request(id, 4, 29)).ok());
    }
  }
  static SchedulerConfig config() {
    SchedulerConfig config = small_config();
    config.num_blocks = 12;
    return config;
  }
  void step_until_preempted(uint64_t times) {
    while (driver.scheduler.stats().preemptions < times) ASSERT_TRUE(driver.step());
  }
  Driver driver;
};

TEST_F(Preemption, TheLastComeGivesWayAndTheOthersGoOn) {
  step_until_preempted(1);
  EXPECT_THAT(driver.plan.scheduled, ElementsAre(Field(&ScheduledSequence::id, 1), Field(&ScheduledSequence::id, 2)));
  EXPECT_EQ(driver.scheduler.stats().running, 2);
  EXPECT_EQ(driver.scheduler.stats().waiting, 1);
  EXPECT_EQ(driver.scheduler.stats().blocks_used, 10);
}

TEST_F(Preemption, ThePreemptedComeBackInOrderWithAllTheirTokensBeforeThoseThatNeverRan) {
  ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.scheduler.add(make_request(4, 40, 1)).ok());
  step_until_preempted(1);
  ASSERT_THAT(driver.answers[4].tokens, IsEmpty());
  std::vector<SequenceId> came_back;
  while (driver.step()) {
    for (const ScheduledSequence& run : driver.plan.scheduled) {
      if (run.num_computed_tokens != 0) continue;
      came_back.push_back(run.id);
      if (run.id == 4) continue;
      const auto sampled = static_cast<int>(driver.answers[run.id].tokens.size());
      const int known_before = 4 + sampled - (run.samples ? 1 : 0);
      EXPECT_EQ(run.samples, run.num_new_tokens == known_before);
      EXPECT_GT(known_before, 4);
    }
  }
  EXPECT_THAT(came_back, ElementsAre(2, 3, 4));
}

TEST_F(Preemption, EverySequenceEndsWithTheTokensItWouldHaveHadAlone) {
  EXPECT_GT(driver.run_to_end(), 0);
  EXPECT_GT(driver.scheduler.stats().preemptions, 0u);
  EXPECT_EQ(driver.scheduler.stats().blocks_used, 0);
  for (SequenceId id = 1; id <= 3; ++id) {
    ASSERT_THAT(driver.answers[id].tokens, SizeIs(29));
    for (int i = 0; i < 29; ++i) {
      EXPECT_EQ(driver.answers[id].tokens[static_cast<size_t>(i)], static_cast<int>(id) * 100 + i);
    }
  }
}

TEST_F(Preemption, TheFirstComeIsNeverPreempted) {
  int next_of_first = 0;
  while (!driver.answers[1].finished()) {
    ASSERT_TRUE(driver.step());
    ASSERT_EQ(driver.plan.scheduled[0].id, 1u);
    ++next_of_first;
  }
  EXPECT_EQ(next_of_first, 29);
}

TEST_F(Preemption, ASequenceIsIntroducedToTheRunnerOnlyOnceAndRetiredOnce) {
  std::map<SequenceId, int> introduced, retired;
  while (driver.scheduler.has_work()) {
    ASSERT_TRUE(driver.step());
    for (const NewSequence& one : driver.plan.added) ++introduced[one.id];
    for (SequenceId id : driver.plan.retired) ++retired[id];
  }
  ASSERT_TRUE(driver.scheduler.add(make_request(5, 1, 1)).ok());
  ASSERT_TRUE(driver.step());
  for (SequenceId id : driver.plan.retired) ++retired[id];
  for (SequenceId id = 1; id <= 3; ++id) {
    EXPECT_EQ(introduced[id], 1);
    EXPECT_EQ(retired[id], 1);
  }
}

TEST(SchedulerPreemption, TheLastSitsOutWithItsBlocksRatherThanPreemptingItself) {
  SchedulerConfig config = small_config();
  config.num_blocks = 5;
  Driver driver(config);
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 5, 4)).ok());   // never more than 2 blocks
  ASSERT_TRUE(driver.scheduler.add(make_request(2, 11, 9)).ok());  // 3; the 4th when 1 has ended
  ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled, ElementsAre(run_is(1, 6, 1, true)));
  EXPECT_EQ(driver.scheduler.stats().blocks_used, 5);
  ASSERT_TRUE(driver.step());  // 1 ends
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled, ElementsAre(run_is(2, 12, 1, true)));
  EXPECT_GT(driver.run_to_end(), 0);
  EXPECT_EQ(driver.scheduler.stats().preemptions, 0u);
  EXPECT_THAT(driver.answers[2].tokens, SizeIs(9));
}

TEST(SchedulerPreemption, NobodyIsAdmittedInAStepThatRanOutOfBlocks) {
  SchedulerConfig config = small_config();
  config.num_blocks = 5;
  Driver driver(config);
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 5, 4)).ok());
  ASSERT_TRUE(driver.scheduler.add(make_request(2, 8, 12)).ok());  // wants its third block at once
  ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.scheduler.add(make_request(3, 1, 1)).ok());
  ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled, ElementsAre(run_is(1, 6, 1, true), run_is(2, 9, 1, true)));
  EXPECT_GT(driver.run_to_end(), 0);
  EXPECT_THAT(driver.answers[3].tokens, SizeIs(1));
}

TEST(SchedulerPreemption, TwoThatBothWantThePoolDoNotPreemptEachOtherInTurn) {
  SchedulerConfig config = small_config();
  config.num_blocks = 8;
  Driver driver(config);
  // Each alone fills the pool in the end.
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 4, 29)).ok());
  ASSERT_TRUE(driver.scheduler.add(make_request(2, 4, 29)).ok());
  EXPECT_GT(driver.run_to_end(100), 0);
  EXPECT_LE(driver.scheduler.stats().preemptions, 2u);
  EXPECT_THAT(driver.answers[1].tokens, SizeIs(29));
  EXPECT_THAT(driver.answers[2].tokens, SizeIs(29));
}

// ---- commit ----

TEST(SchedulerCommit, AnEndIdStopsTheAnswerAndIsItsLastToken) {
  Driver driver(small_config());
  SequenceRequest request = make_request(1, 3, 10);
  request.eos_ids = {2};
  driver.sample = [](SequenceId, int index) { return index == 2 ? 2 : 50; };
  ASSERT_TRUE(driver.scheduler.add(request).ok());
  EXPECT_EQ(driver.run_to_end(), 3);
  EXPECT_THAT(driver.answers[1].tokens, ElementsAre(50, 50, 2));
  EXPECT_EQ(driver.answers[1].last.finish, FinishReason::kStop);
  EXPECT_EQ(driver.answers[1].last.stop_token, 2);
  EXPECT_TRUE(driver.answers[1].last.stopped_by_eos);
}

TEST(SchedulerCommit, AStopIdOfTheRequestStopsTheAnswerToo) {
  Driver driver(small_config());
  SamplingParams params;
  params.stop_token_ids = {7, 8};
  driver.sample = [](SequenceId, int index) { return 6 + index; };
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 3, params)).ok());
  EXPECT_EQ(driver.run_to_end(), 2);
  EXPECT_EQ(driver.answers[1].last.finish, FinishReason::kStop);
  EXPECT_EQ(driver.answers[1].last.stop_token, 7);
  EXPECT_FALSE(driver.answers[1].last.stopped_by_eos);
}

TEST(SchedulerCommit, BeforeMinTokensNoIdStops) {
  Driver driver(small_config());
  SamplingParams params;
  params.min_tokens = 3;
  params.max_tokens = 10;
  SequenceRequest request = make_request(1, 3, params);
  request.eos_ids = {2};
  driver.sample = [](SequenceId, int) { return 2; };
  ASSERT_TRUE(driver.scheduler.add(request).ok());
  EXPECT_GT(driver.run_to_end(), 0);
  EXPECT_THAT(driver.answers[1].tokens, ElementsAre(2, 2, 2));
}

TEST(SchedulerCommit, AnEndIdAsTheLastAllowedTokenIsAStopNotALength) {
  Driver driver(small_config());
  SequenceRequest request = make_request(1, 3, 2);
  request.eos_ids = {2};
  driver.sample = [](SequenceId, int index) { return index == 1 ? 2 : 50; };
  ASSERT_TRUE(driver.scheduler.add(request).ok());
  EXPECT_EQ(driver.run_to_end(), 2);
  EXPECT_EQ(driver.answers[1].last.finish, FinishReason::kStop);
}

TEST(SchedulerCommit, SeveralTokensOfOneStepAreCutAtTheOneThatEndsTheAnswer) {
  Driver driver(small_config());
  SequenceRequest request = make_request(1, 3, 10);
  request.eos_ids = {2};
  ASSERT_TRUE(driver.scheduler.add(request).ok());
  ASSERT_TRUE(driver.scheduler.schedule(driver.plan));
  StepResult result = driver.run(driver.plan);
  result.sequences[0].tokens = {50, 2, 51};
  result.sequences[0].logprobs.resize(3);
  driver.commit(driver.plan, std::move(result));
  EXPECT_THAT(driver.answers[1].tokens, ElementsAre(50, 2));
  EXPECT_THAT(driver.answers[1].last.logprobs, SizeIs(2));
  EXPECT_FALSE(driver.scheduler.has_work());
}

TEST(SchedulerCommit, AnErrorEndsItsSequenceAlone) {
  Driver driver(small_config());
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 3, 4)).ok());
  ASSERT_TRUE(driver.scheduler.add(make_request(2, 3, 4)).ok());
  ASSERT_TRUE(driver.scheduler.schedule(driver.plan));
  StepResult result = driver.run(driver.plan);
  result.sequences[0].tokens.clear();
  result.sequences[0].error = internal_error("not finite");
  driver.commit(driver.plan, std::move(result));
  EXPECT_EQ(driver.answers[1].last.finish, FinishReason::kError);
  EXPECT_EQ(driver.answers[1].last.error.message(), "not finite");
  EXPECT_GT(driver.run_to_end(), 0);
  EXPECT_THAT(driver.answers[2].tokens, SizeIs(4));
  EXPECT_EQ(driver.scheduler.stats().blocks_used, 0);
}

TEST(SchedulerCommit, PromptLogprobsOfAllChunksComeOnceWithTheFirstToken) {
  Driver driver(small_config());
  SamplingParams params;
  params.prompt_logprobs = 0;
  params.max_tokens = 3;
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 40, params)).ok());
  ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.answers[1].prompt_logprobs, IsEmpty());
  ASSERT_TRUE(driver.step());
  ASSERT_THAT(driver.answers[1].prompt_logprobs, SizeIs(39));
  for (int i = 0; i < 39; ++i) {
    EXPECT_EQ(driver.answers[1].prompt_logprobs[static_cast<size_t>(i)].chosen.id, 1001 + i);
  }
  EXPECT_GT(driver.run_to_end(), 0);
  EXPECT_THAT(driver.answers[1].prompt_logprobs, SizeIs(39));
}

TEST(SchedulerCommit, PromptLogprobsAreNeitherLostNorRepeatedByAPreemption) {
  SchedulerConfig config = small_config();
  config.num_blocks = 12;
  Driver driver(config);
  SamplingParams params;
  params.prompt_logprobs = 0;
  params.max_tokens = 29;
  for (SequenceId id = 1; id <= 3; ++id) {
    ASSERT_TRUE(driver.scheduler.add(make_request(id, 4, params)).ok());
  }
  EXPECT_GT(driver.run_to_end(), 0);
  EXPECT_GT(driver.scheduler.stats().preemptions, 0u);
  for (SequenceId id = 1; id <= 3; ++id) {
    EXPECT_THAT(driver.answers[id].prompt_logprobs, SizeIs(3));
  }
}

TEST(SchedulerCommit, AScoringRequestSamplesNothingAndBringsItsPromptLogprobs) {
  Driver driver(small_config());
  SamplingParams params;
  params.prompt_logprobs = 2;
  params.max_tokens = 0;
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 20, params)).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_FALSE(driver.answers[1].finished());
  ASSERT_TRUE(driver.step());
  EXPECT_FALSE(driver.plan.scheduled[0].samples);
  EXPECT_THAT(driver.answers[1].prompt_logprobs, SizeIs(19));
  EXPECT_EQ(driver.answers[1].last.finish, FinishReason::kLength);
  EXPECT_FALSE(driver.scheduler.has_work());
}

// ---- cancel ----

TEST(SchedulerCancel, OfAWaitingSequenceLeavesNoTrace) {
  Driver driver(small_config());
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 3, 4)).ok());
  EXPECT_TRUE(driver.scheduler.cancel(1));
  EXPECT_FALSE(driver.scheduler.cancel(1));
  EXPECT_FALSE(driver.scheduler.cancel(99));
  EXPECT_FALSE(driver.scheduler.has_work());
  ASSERT_TRUE(driver.scheduler.add(make_request(2, 3, 1)).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.retired, IsEmpty());  // the runner never heard of it
}

TEST(SchedulerCancel, BetweenStepsFreesTheBlocksAtOnce) {
  Driver driver(small_config());
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 9, 4)).ok());
  ASSERT_TRUE(driver.scheduler.add(make_request(2, 3, 4)).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_EQ(driver.scheduler.stats().blocks_used, 4);
  EXPECT_TRUE(driver.scheduler.cancel(1));
  driver.scheduler.check_invariants();
  EXPECT_EQ(driver.scheduler.stats().blocks_used, 1);
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.retired, ElementsAre(1));
  EXPECT_THAT(driver.plan.scheduled, ElementsAre(run_is(2, 3, 1, true)));
}

TEST(SchedulerCancel, OfASequenceInFlightFreesItsBlocksAtCommitAndTellsNothingMore) {
  Driver driver(small_config());
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 9, 4)).ok());
  ASSERT_TRUE(driver.scheduler.schedule(driver.plan));
  EXPECT_TRUE(driver.scheduler.cancel(1));
  EXPECT_FALSE(driver.scheduler.cancel(1));
  EXPECT_EQ(driver.scheduler.stats().blocks_used, 3);
  EXPECT_EQ(driver.scheduler.stats().running, 0);
  EXPECT_TRUE(driver.scheduler.has_work());
  driver.scheduler.check_invariants();
  driver.commit(driver.plan, driver.run(driver.plan));
  EXPECT_TRUE(driver.answers[1].tokens.empty());
  EXPECT_FALSE(driver.answers[1].finished());
  EXPECT_EQ(driver.scheduler.stats().blocks_used, 0);
  EXPECT_FALSE(driver.scheduler.has_work());
}

TEST(SchedulerCancel, OfAPreemptedSequenceRetiresIt) {
  SchedulerConfig config = small_config();
  config.num_blocks = 12;
  Driver driver(config);
  for (SequenceId id = 1; id <= 3; ++id) {
    ASSERT_TRUE(driver.scheduler.add(make_request(id, 4, 29)).ok());
  }
  while (driver.scheduler.stats().preemptions == 0) ASSERT_TRUE(driver.step());
  EXPECT_TRUE(driver.scheduler.cancel(3));
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.retired, ElementsAre(3));
}

TEST(SchedulerCommit, AnAnswerThatRepeatsItselfEndsWithRepetition) {
  Driver driver(small_config());
  SamplingParams params;
  params.max_tokens = 20;
  params.min_tokens = 3;
  params.repetition_detection = RepetitionDetection{.max_pattern_size = 2, .min_pattern_size = 1, .min_count = 2};
  driver.sample = [](SequenceId, int index) {
    return std::vector<TokenId>{5, 5, 6, 7, 6, 7, 8}.at(static_cast<size_t>(index));
  };
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 3, params)).ok());
  EXPECT_EQ(driver.run_to_end(), 6) << "the first two are alike, but min_tokens is 3";
  EXPECT_THAT(driver.answers[1].tokens, ElementsAre(5, 5, 6, 7, 6, 7));
  EXPECT_EQ(driver.answers[1].last.finish, FinishReason::kRepetition);
  EXPECT_EQ(driver.scheduler.stats().blocks_used, 0);
}

// ---- limits on prompts and room ----

TEST(SchedulerLimits, LongPrefillTokenThresholdBoundsWhatOnePromptTakesOfAStep) {
  SchedulerConfig config = small_config();
  config.long_prefill_token_threshold = 6;
  config.max_num_partial_prefills = 2;
  Driver driver(config);
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 14, 2)).ok());
  ASSERT_TRUE(driver.scheduler.add(make_request(2, 9, 2)).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled, ElementsAre(run_is(1, 0, 6, false), run_is(2, 0, 6, false)));
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled, ElementsAre(run_is(1, 6, 6, false), run_is(2, 6, 3, true)));
}

TEST(SchedulerLimits, NoMoreThanMaxNumPartialPrefillsAreUnderWayAndNobodyOvertakes) {
  SchedulerConfig config = small_config();
  config.long_prefill_token_threshold = 4;
  for (const int32_t limit : {1, 2}) {
    config.max_num_partial_prefills = limit;
    Driver driver(config);
    for (SequenceId id = 1; id <= 3; ++id) ASSERT_TRUE(driver.scheduler.add(make_request(id, 7, 2)).ok());
    ASSERT_TRUE(driver.scheduler.add(make_request(4, 2, 2)).ok());
    ASSERT_TRUE(driver.step());
    EXPECT_THAT(driver.plan.scheduled, SizeIs(static_cast<size_t>(limit)));
    ASSERT_TRUE(driver.step());
    EXPECT_EQ(driver.plan.scheduled.back().id, limit == 1 ? 2u : 4u);
    EXPECT_GT(driver.run_to_end(), 0);
  }
}

TEST(SchedulerLimits, WithoutPartialPrefillsAPromptWaitsForAStepThatHasRoomForAllOfIt) {
  SchedulerConfig config = small_config();
  config.max_num_batched_tokens = 64;
  config.max_num_partial_prefills = 0;
  config.num_blocks = 64;
  Driver driver(config);
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 40, 3)).ok());
  ASSERT_TRUE(driver.scheduler.add(make_request(2, 30, 3)).ok());
  ASSERT_TRUE(driver.scheduler.add(make_request(3, 2, 3)).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled, ElementsAre(run_is(1, 0, 40, true))) << "nobody overtakes the second";
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled,
              ElementsAre(run_is(1, 40, 1, true), run_is(2, 0, 30, true), run_is(3, 0, 2, true)));
  EXPECT_GT(driver.run_to_end(), 0);
}

TEST(SchedulerConfig, WithoutPartialPrefillsEveryPromptMustFitAStep) {
  SchedulerConfig config = small_config();
  config.max_num_partial_prefills = 0;
  config.max_num_batched_tokens = config.max_model_len;
  EXPECT_TRUE(validate(config).ok());
  config.long_prefill_token_threshold = 8;
  EXPECT_EQ(validate(config).param(), "long_prefill_token_threshold");
  config.long_prefill_token_threshold = 0;
  config.max_num_batched_tokens = config.max_model_len - 1;
  EXPECT_EQ(validate(config).param(), "max_num_batched_tokens");
}

TEST(SchedulerLimits, AdmissionLeavesTheWatermarkFreeUnlessNobodyRuns) {
  SchedulerConfig full = small_config();
  full.num_blocks = 4;
  full.watermark = 0.25;
  Driver alone(full);
  ASSERT_TRUE(alone.scheduler.add(make_request(1, 16, 1)).ok());
  EXPECT_TRUE(alone.step());
  SchedulerConfig config = small_config();
  config.num_blocks = 8;
  for (const double watermark : {0.0, 0.25}) {
    config.watermark = watermark;
    Driver driver(config);
    ASSERT_TRUE(driver.scheduler.add(make_request(1, 4, 4)).ok());  // 1 block, 2 with its next token
    ASSERT_TRUE(driver.step());
    ASSERT_TRUE(driver.scheduler.add(make_request(2, 15, 5)).ok());  // 4 blocks: 2 + 4 of 8
    ASSERT_TRUE(driver.scheduler.add(make_request(3, 4, 1)).ok());   // 1 more
    ASSERT_TRUE(driver.step());
    ASSERT_TRUE(driver.step());
    EXPECT_EQ(driver.answers[3].finished(), watermark == 0.0);
    EXPECT_GT(driver.run_to_end(), 0);
  }
}

// ---- plans ahead of results ----

TEST(SchedulerLookahead, UnlessAskedForNoPlanIsMadeBeforeTheLastIsCommitted) {
  Driver driver(small_config());
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 40, 2)).ok());
  StepPlan first, second;
  ASSERT_TRUE(driver.scheduler.schedule(first));
  EXPECT_FALSE(driver.scheduler.schedule(second));
  driver.commit(first, driver.run(first));
  EXPECT_TRUE(driver.scheduler.schedule(second));
  driver.commit(second, driver.run(second));
}

TEST(SchedulerLookahead, AChunkedPromptGoesOnBeforeTheLastChunkIsCommitted) {
  SchedulerConfig config = small_config();
  config.max_plans_in_flight = 3;
  Driver driver(config);
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 40, 2)).ok());
  StepPlan first, second, third;
  ASSERT_TRUE(driver.scheduler.schedule(first));
  ASSERT_TRUE(driver.scheduler.schedule(second));
  EXPECT_THAT(second.scheduled, ElementsAre(run_is(1, 16, 16, false)));
  ASSERT_TRUE(driver.scheduler.schedule(third));
  EXPECT_THAT(third.scheduled, ElementsAre(run_is(1, 32, 8, true)));
  StepPlan fourth;
  EXPECT_FALSE(driver.scheduler.schedule(fourth));
  driver.commit(first, driver.run(first));
  driver.commit(second, driver.run(second));
  driver.commit(third, driver.run(third));
  EXPECT_THAT(driver.answers[1].tokens, SizeIs(1));
  EXPECT_GT(driver.run_to_end(), 0);
}

TEST(SchedulerDeath, ResultsThatDoNotBelongToThePlanEndTheProcess) {
  Driver driver(small_config());
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 4, 2)).ok());
  StepPlan plan;
  ASSERT_TRUE(driver.scheduler.schedule(plan));
  StepResult missing;
  missing.step = plan.step;
  EXPECT_DEATH((void)driver.scheduler.commit(plan, std::move(missing)), "result.sequences.size");
  StepResult late = driver.run(plan);
  late.step = 99;
  EXPECT_DEATH((void)driver.scheduler.commit(plan, std::move(late)), "result.step");
}

}  // namespace
}  // namespace quire::sched
