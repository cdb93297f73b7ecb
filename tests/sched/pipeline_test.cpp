// Rule 10: stages of a pipeline that are at work on steps of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sched/scheduler.h"
#include "tests/sched/scheduler_harness.h"

namespace quire::sched {
namespace {

using testing::IsEmpty;
using testing::SizeIs;
using testing_support::Driver;
using testing_support::make_request;

SchedulerConfig pipeline_config(int32_t stages) {
  SchedulerConfig config;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 64;
  config.max_model_len = 64;
  config.num_blocks = 24;
  config.block_size = 4;
  config.prefix_caching = false;  // the prompts of these tests begin alike
  config.watermark = 0;
  config.max_plans_in_flight = config.num_stages = stages;
  config.least_stage_tokens = 4;
  return config;
}

// The only run of the plan: a part of a prompt.
void expect_part(const StepPlan& plan, int32_t computed, int32_t fresh) {
  ASSERT_THAT(plan.scheduled, SizeIs(1));
  EXPECT_EQ(plan.scheduled[0].num_computed_tokens, computed);
  EXPECT_EQ(plan.scheduled[0].num_new_tokens, fresh);
  EXPECT_FALSE(plan.scheduled[0].samples);
}

TEST(SchedulerPipeline, EachStageHasItsPartOfTheAnswersAndIsToldOfTheirTokens) {
  Driver driver(pipeline_config(2));
  for (SequenceId id = 1; id <= 4; ++id) ASSERT_TRUE(driver.scheduler.add(make_request(id, 4, 20)).ok());
  StepPlan prompts, first, second, third;
  while (driver.answers.size() < 4) {
    ASSERT_TRUE(driver.scheduler.schedule(prompts));
    driver.commit(prompts, driver.run(prompts));
  }
  // From here on two of the four are in each step, and they take turns.
  ASSERT_TRUE(driver.scheduler.schedule(first));
  EXPECT_THAT(first.scheduled, SizeIs(2));
  ASSERT_TRUE(driver.scheduler.schedule(second));
  EXPECT_THAT(second.scheduled, SizeIs(2));
  EXPECT_THAT(second.sampled, IsEmpty());
  EXPECT_FALSE(driver.scheduler.schedule(third)) << "a step for each stage";
  driver.commit(first, driver.run(first));
  ASSERT_TRUE(driver.scheduler.schedule(third));
  ASSERT_THAT(third.scheduled, SizeIs(2));
  ASSERT_THAT(third.sampled, SizeIs(2));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(third.scheduled[i].id, first.scheduled[i].id);
    EXPECT_EQ(third.sampled[i].id, first.scheduled[i].id);
    EXPECT_EQ(third.sampled[i].token, driver.answers[first.scheduled[i].id].tokens.back());
  }
  driver.commit(second, driver.run(second));
  driver.commit(third, driver.run(third));
  EXPECT_GT(driver.run_to_end(), 0);
}

TEST(SchedulerPipeline, APromptIsCutSoThatNoStageWaitsForAllOfIt) {
  Driver driver(pipeline_config(2));
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 40, 2)).ok());
  StepPlan first, second, third;
  ASSERT_TRUE(driver.scheduler.schedule(first));
  expect_part(first, 0, 5);
  ASSERT_TRUE(driver.scheduler.schedule(second));
  expect_part(second, 5, 5);
  driver.commit(first, driver.run(first));
  ASSERT_TRUE(driver.scheduler.schedule(third));
  expect_part(third, 10, 4);
  driver.commit(second, driver.run(second));
  driver.commit(third, driver.run(third));
  EXPECT_GT(driver.run_to_end(), 0);
  EXPECT_THAT(driver.answers[1].tokens, SizeIs(2));
}

TEST(SchedulerPipeline, OneAnswerAloneGoesOnWhenItsTokenIsThere) {
  Driver driver(pipeline_config(3));
  ASSERT_TRUE(driver.scheduler.add(make_request(1, 3, 4)).ok());
  StepPlan plan, none;
  for (int step = 0; step < 4; ++step) {
    ASSERT_TRUE(driver.scheduler.schedule(plan));
    EXPECT_FALSE(driver.scheduler.schedule(none));
    EXPECT_THAT(plan.sampled, SizeIs(step == 0 ? 0 : 1));
    driver.commit(plan, driver.run(plan));
  }
  EXPECT_FALSE(driver.scheduler.has_work());
}

}  // namespace
}  // namespace quire::sched
