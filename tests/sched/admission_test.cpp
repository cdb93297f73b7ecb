// Who gets into a step: what running sequences are sure of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sched/paged_driver.h"

namespace quire::sched {
namespace {

using testing_support::make_request;
using testing_support::PagedDriver;

SchedulerConfig config_of(int32_t num_blocks) {
  SchedulerConfig config;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 16;
  config.max_model_len = 512;
  config.num_blocks = num_blocks;
  config.block_size = 4;
  config.watermark = 0;
  return config;
}

// ---- tokens of answers first ----

TEST(TokensFirst, AnUrgentLongPromptTakesWhatRunningAnswersLeave) {
  SchedulerConfig config = config_of(256);
  config.prefix_caching = false;
  config.tokens_per_priority_level = 100'000;
  PagedDriver driver(config);
  for (SequenceId id = 1; id <= 2; ++id) ASSERT_TRUE(driver.add(make_request(id, 4, 100)).ok());
  ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.step());
  SequenceRequest urgent = make_request(3, 200, 1);
  urgent.priority = -1;
  ASSERT_TRUE(driver.add(urgent).ok());
  int steps = 0;
  for (; !driver.answers[3].finished(); ++steps) {
    ASSERT_TRUE(driver.step());
    ASSERT_NE(driver.run_of(1), nullptr) << "no token in step " << steps << " of the long prompt";
    ASSERT_NE(driver.run_of(2), nullptr) << "no token in step " << steps << " of the long prompt";
    ASSERT_NE(driver.run_of(3), nullptr);
    if (steps < 14) {
      EXPECT_EQ(driver.run_of(3)->num_new_tokens, 14) << "all that is left of the step";
    }
  }
  EXPECT_EQ(steps, 15) << "200 tokens, 14 a step";
  EXPECT_TRUE(driver.run_to_end());
}

TEST(TokensFirst, WhenAnswersAloneFillTheStepAPromptUnderWayWaitsAndThenGoesOn) {
  SchedulerConfig config = config_of(256);
  config.prefix_caching = false;
  config.max_num_batched_tokens = 4;
  config.tokens_per_priority_level = 100'000;
  PagedDriver driver(config);
  for (SequenceId id = 1; id <= 3; ++id) ASSERT_TRUE(driver.add(make_request(id, 1, 20)).ok());
  ASSERT_TRUE(driver.step());
  SequenceRequest urgent = make_request(4, 30, 2);
  urgent.priority = -1;
  ASSERT_TRUE(driver.add(urgent).ok());
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(driver.step());
    EXPECT_EQ(driver.run_of(4)->num_new_tokens, 1);
    for (SequenceId id = 1; id <= 3; ++id) EXPECT_NE(driver.run_of(id), nullptr);
  }
  EXPECT_TRUE(driver.run_to_end());
  EXPECT_EQ(driver.answers[4].tokens, driver.alone(urgent, 2));
}

TEST(TokensFirst, AnUrgentPromptStillGetsTheBlocksOfThoseBehindIt) {
  SchedulerConfig config = config_of(24);
  config.prefix_caching = false;
  config.max_num_batched_tokens = 4;
  config.tokens_per_priority_level = 100'000;
  PagedDriver driver(config);
  for (SequenceId id = 1; id <= 2; ++id) ASSERT_TRUE(driver.add(make_request(id, 4, 60)).ok());
  ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.step());
  SequenceRequest urgent = make_request(3, 60, 4);
  urgent.priority = -1;
  ASSERT_TRUE(driver.add(urgent).ok());
  for (int steps = 0; !driver.answers[3].finished(); ++steps) {
    ASSERT_TRUE(driver.step());
    ASSERT_NE(driver.run_of(3), nullptr) << "in step " << steps << " it gave way to those behind it";
  }
  EXPECT_GT(driver.scheduler.stats().preemptions, 0u);
  EXPECT_FALSE(driver.answers[1].finished());
  EXPECT_TRUE(driver.run_to_end());
}

}  // namespace
}  // namespace quire::sched
