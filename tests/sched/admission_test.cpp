// Who gets into a step: what running sequences are sure of, and when one that was refused is asked again.
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

// ---- asked again ----

TEST(AskedAgain, ARefusedRequestIsAdmittedWhenWhatOthersPublishedMakesItFit) {
  SchedulerConfig config = config_of(16);
  config.long_prefill_token_threshold = 8;
  config.max_num_partial_prefills = 2;
  PagedDriver driver(config);
  // Both read one document of 40 tokens: 10 blocks. Together they fit only when they share it.
  ASSERT_TRUE(driver.add(make_request(1, 40, 20)).ok());
  ASSERT_TRUE(driver.add(make_request(2, 42, 4)).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_EQ(driver.run_of(2), nullptr) << "most of the document is still to be computed, twice";
  for (int steps = 1; driver.run_of(2) == nullptr; ++steps) {
    ASSERT_TRUE(driver.step());
    ASSERT_LE(steps, 5) << "the document is computed, and the second not asked again";
  }
  EXPECT_TRUE(driver.run_to_end());
}

TEST(AskedAgain, WithoutWalkingThroughItsWholePromptEachTime) {
  SchedulerConfig config = config_of(40);
  PagedDriver driver(config);
  ASSERT_TRUE(driver.add(make_request(1, 80, 64)).ok());
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(driver.step());
  // The first 10 of its 30 blocks are there; the others do not fit beside the first request.
  SequenceRequest second = make_request(2, 120, 4);
  for (size_t i = 40; i < second.prompt.size(); ++i) second.prompt[i] += 5000;
  ASSERT_TRUE(driver.add(second).ok());
  ASSERT_TRUE(driver.step());
  const int64_t walked = driver.scheduler.stats().prefix_walked_blocks;
  EXPECT_GE(walked, 10);
  int steps = 0;
  for (; driver.run_of(2) == nullptr; ++steps) ASSERT_TRUE(driver.step());
  EXPECT_GT(steps, 40);
  EXPECT_LE(driver.scheduler.stats().prefix_walked_blocks - walked, steps + 12) << "a block a step, and one more look";
  EXPECT_EQ(driver.run_of(2)->num_computed_tokens, 40);
  EXPECT_TRUE(driver.run_to_end());
}

// ---- looked up once ----

TEST(LookedUpOnce, ARequestThatWaitsForPartialPrefillsIsCountedWhenItIsAdmitted) {
  SchedulerConfig config = config_of(128);
  config.long_prefill_token_threshold = 4;
  config.max_num_partial_prefills = 1;
  PagedDriver driver(config);
  ASSERT_TRUE(driver.add(make_request(1, 60, 2)).ok());
  SequenceRequest second = make_request(2, 60, 2);
  for (TokenId& token : second.prompt) token += 5000;
  ASSERT_TRUE(driver.add(second).ok());
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(driver.step());
    EXPECT_EQ(driver.scheduler.stats().prefix_query_tokens, 60) << "the second waits";
  }
  EXPECT_TRUE(driver.run_to_end());
  EXPECT_EQ(driver.scheduler.stats().prefix_query_tokens, 120);
  EXPECT_EQ(driver.scheduler.stats().prefix_hit_tokens, 0);
}

TEST(LookedUpOnce, HitsOfARequestThatIsRefusedManyTimesCountOnce) {
  SchedulerConfig config = config_of(24);
  PagedDriver driver(config);
  const SequenceRequest warm = make_request(1, 17, 1);  // leaves 4 blocks of its text
  ASSERT_TRUE(driver.add(warm).ok());
  ASSERT_TRUE(driver.step());
  SequenceRequest large = make_request(2, 40, 20);
  for (TokenId& token : large.prompt) token += 5000;
  ASSERT_TRUE(driver.add(large).ok());
  ASSERT_TRUE(driver.add(make_request(3, 61, 4)).ok());  // begins as the first did, and does not fit beside the second
  const int64_t before = driver.scheduler.stats().prefix_query_tokens;
  int steps = 0;
  for (; driver.run_of(3) == nullptr; ++steps) ASSERT_TRUE(driver.step());
  EXPECT_GT(steps, 5) << "it was refused several times";
  EXPECT_EQ(driver.scheduler.stats().prefix_query_tokens - before, 40 + 61);
  EXPECT_LE(driver.scheduler.stats().prefix_hit_tokens, 16);
  EXPECT_TRUE(driver.run_to_end());
}

}  // namespace
}  // namespace quire::sched
