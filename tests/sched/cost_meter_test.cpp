#include "sched/cost_meter.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace quire::sched {
namespace {

PlannedStep step_of(int32_t num_tokens, int32_t num_computed = 0) {
  PlannedStep step;
  step.num_tokens = num_tokens;
  step.runs.push_back({.id = 1, .num_computed_tokens = num_computed, .num_new_tokens = num_tokens, .samples = true});
  return step;
}

SchedulerConfig metered(double tenant_step_seconds = 0.05, double tokens_per_position = 0) {
  SchedulerConfig config;
  config.tenant_step_seconds = tenant_step_seconds;
  config.tokens_per_position = tokens_per_position;
  return config;
}

// Steps of rule 5's length at what is known, halved where short prompts come, on a machine where a token takes so long.
void take_steps(CostMeter& meter, double seconds_per_token, int steps, double share = 0.5) {
  for (int i = 0; i < steps; ++i) {
    const double whole = std::max(0.05 / meter.costs().seconds_per_recomputed_token, kLeastSharedTokens);
    const auto tokens = static_cast<int32_t>(std::max(share * whole, kLeastSharedTokens));
    meter.observe(step_of(tokens), tokens * seconds_per_token, 0);
  }
}

TEST(CostMeter, FewTokensSayWhatReadingTheWeightsCostsAndAreNotHeeded) {
  CostMeter meter(metered(), {});
  EXPECT_FALSE(meter.observe(step_of(63), 1, 0));
  EXPECT_EQ(meter.costs().seconds_per_recomputed_token, 0);
  EXPECT_TRUE(meter.observe(step_of(64), 0.064, 0));
  EXPECT_DOUBLE_EQ(meter.costs().seconds_per_recomputed_token, 1e-3);
  EXPECT_FALSE(meter.observe(step_of(1), 0.008, 0)) << "one row of a machine whose steps have 50";
  EXPECT_DOUBLE_EQ(meter.costs().seconds_per_recomputed_token, 1e-3);
}

TEST(CostMeter, AFirstStepThatWaitedForTheDiskDoesNotKeepStepsShortForEver) {
  CostMeter meter(metered(), {});
  meter.observe(step_of(152), 3.0, 0);  // 20 ms a token: from now on a shared step has eight of them
  take_steps(meter, 0.6e-3, 100);
  EXPECT_NEAR(meter.costs().seconds_per_recomputed_token, 0.6e-3, 0.01e-3);
}

TEST(CostMeter, WhatABusyMachineTookIsForgottenWhenItIsQuiet) {
  CostMeter meter(metered(), {});
  take_steps(meter, 2e-3, 1);
  meter.observe(step_of(100), 0.06, 0);
  take_steps(meter, 2e-3, 100);
  EXPECT_NEAR(meter.costs().seconds_per_recomputed_token, 2e-3, 0.01e-3) << "25 tokens of 2 ms, and none has 64";
  take_steps(meter, 0.6e-3, 100);
  EXPECT_NEAR(meter.costs().seconds_per_recomputed_token, 0.6e-3, 0.01e-3);
}

TEST(CostMeter, OneStepThatTookLongSaysLittle) {
  CostMeter meter(metered(), {});
  meter.observe(step_of(100), 0.1, 0);
  meter.observe(step_of(100), 10, 0);
  EXPECT_NEAR(meter.costs().seconds_per_recomputed_token, 1.125e-3, 1e-9);
}

TEST(CostMeter, WithoutABoundOnStepsOnlyLongOnesTell) {
  CostMeter meter(metered(0), {});
  meter.observe(step_of(100), 1, 0);
  EXPECT_FALSE(meter.observe(step_of(63), 0.063, 0));
  EXPECT_DOUBLE_EQ(meter.costs().seconds_per_recomputed_token, 1e-2);
}

TEST(CostMeter, StepsThatMostlyAttendTellByHowMuchAttentionCostsMore) {
  CostMeter meter(metered(0.05, 1e-3), {});
  meter.observe(step_of(100), 100 * 1e-3 * 1.05, 0);
  EXPECT_NEAR(meter.costs().seconds_per_recomputed_token, 1e-3, 1e-6);
  // 20 tokens at 4,000 positions: as much as 100 by count, in truth as much as 180.
  for (int i = 0; i < 200; ++i) meter.observe(step_of(20, 4000), 0.18, 0);
  EXPECT_NEAR(meter.costs().attention_factor, 2.0, 0.02);
  EXPECT_NEAR(meter.costs().seconds_per_recomputed_token, 1e-3, 1e-6);
}

TEST(CostMeter, CopiesTellOfABlock) {
  CostMeter meter(metered(), {.seconds_per_swapped_block = 1e-3});
  PlannedStep step = step_of(1);
  EXPECT_FALSE(meter.observe(step, 0.01, 0));
  step.num_swapped_blocks = 10;
  EXPECT_TRUE(meter.observe(step, 0.03, 0.018));
  EXPECT_NEAR(meter.costs().seconds_per_swapped_block, 1.1e-3, 1e-9);
}

}  // namespace
}  // namespace quire::sched
