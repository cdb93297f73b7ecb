// Fair shares as requests experience them: whose lengths change, who cancels, who searches with beams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/sched/paged_driver.h"

namespace quire::sched {
namespace {

using testing_support::make_request;
using testing_support::PagedDriver;

class Shares : public testing::Test {
 protected:
  explicit Shares(const SchedulerConfig& scheduling = config()) : driver_(scheduling) {}
  static SchedulerConfig config() {
    SchedulerConfig config;
    config.max_num_seqs = 4;
    config.max_num_batched_tokens = 32;
    config.max_model_len = 256;
    config.num_blocks = 256;
    config.block_size = 4;
    config.watermark = 0;
    config.prefix_caching = false;
    return config;
  }
  SequenceId add(int tenant, int prompt, SamplingParams params) {
    const SequenceId id = next_;
    SequenceRequest request = make_request(id, prompt, std::move(params));
    request.tenant = tenant;
    const auto num_ids = static_cast<SequenceId>(std::max(1, request.params->num_beams()));
    next_ += num_ids;
    for (SequenceId one = id; one < next_; ++one) tenant_of_[one] = tenant;
    last_of_[id] = id + static_cast<SequenceId>(request.params->n) - 1;
    EXPECT_TRUE(driver_.add(std::move(request)).ok());
    ++open_[tenant];
    return id;
  }
  void step() {
    ASSERT_TRUE(driver_.step());
    for (const ScheduledSequence& run : driver_.plan.scheduled) tokens_[tenant_of_.at(run.id)] += run.num_new_tokens;
    std::erase_if(driver_.answers, [&](const auto& entry) {
      if (!entry.second.finished()) return false;
      if (last_of_.contains(entry.first)) --open_[tenant_of_.at(entry.first)];
      return true;
    });
  }

  PagedDriver driver_;
  SequenceId next_ = 1;
  std::map<SequenceId, int> tenant_of_;
  std::map<SequenceId, SequenceId> last_of_;
  std::map<int, int> open_;
  std::map<int, int64_t> tokens_;
};

TEST_F(Shares, WhoTurnsFromShortAnswersToLongOnesPaysForThemAllTheSame) {
  const auto keep_the_other_busy = [&] {
    while (open_[2] < 8) add(2, 4, {.max_tokens = 20});
  };
  // So short that little is expected of the next ones.
  for (int i = 0; i < 64; ++i) {
    add(1, 4, {.max_tokens = 1});
    keep_the_other_busy();
    step();
  }
  while (open_[1] > 0) {
    keep_the_other_busy();
    step();
  }
  // All at once, each charged with the little that is expected.
  for (int i = 0; i < 1000; ++i) add(1, 4, {.max_tokens = 100});
  while (open_[1] > 0) {
    keep_the_other_busy();
    step();
  }
  const int64_t ahead = tokens_[1] - tokens_[2];
  ASSERT_GT(ahead, 50'000) << "lengths are not known beforehand, so the flood was served early";
  // What was had early is paid back before the next is served.
  add(1, 4, {.max_tokens = 100});
  const int64_t other_before = tokens_[2];
  while (open_[1] > 0) {
    keep_the_other_busy();
    step();
  }
  EXPECT_GT(tokens_[2] - other_before, ahead / 2);
}

TEST_F(Shares, WhatWasCancelledInTheQueueCostsNothing) {
  for (int i = 0; i < 4; ++i) add(2, 4, {.max_tokens = 40});
  step();
  std::vector<SequenceId> flood;
  for (int i = 0; i < 200; ++i) flood.push_back(add(1, 40, {.max_tokens = 100}));
  for (const SequenceId id : flood) EXPECT_TRUE(driver_.scheduler.cancel(id));
  for (int i = 0; i < 20; ++i) add(2, 4, {.max_tokens = 40});
  const SequenceId single = add(1, 4, {.max_tokens = 4});
  int64_t of_other = -tokens_[2];
  while (driver_.run_of(single) == nullptr) step();
  of_other += tokens_[2];
  EXPECT_LT(of_other, 10 * 44) << "it is served after about one more of the other's";
}

TEST_F(Shares, NeitherDoSeveralAnswersToOnePromptThatNeverStarted) {
  for (int i = 0; i < 4; ++i) add(2, 4, {.max_tokens = 40});
  step();
  for (int i = 0; i < 50; ++i) {
    const SequenceId first = add(1, 40, {.max_tokens = 100});
    SequenceRequest fork = make_request(next_, 40, 100);
    fork.tenant = 1;
    fork.fork_of = first;
    tenant_of_[next_++] = 1;
    ASSERT_TRUE(driver_.add(fork).ok());
    EXPECT_TRUE(driver_.scheduler.cancel(first));
    EXPECT_TRUE(driver_.scheduler.cancel(fork.id));
  }
  for (int i = 0; i < 20; ++i) add(2, 4, {.max_tokens = 40});
  const SequenceId single = add(1, 4, {.max_tokens = 4});
  int64_t of_other = -tokens_[2];
  while (driver_.run_of(single) == nullptr) step();
  EXPECT_LT(of_other + tokens_[2], 10 * 44);
}

TEST_F(Shares, BeamsArePaidForByTheBeam) {
  const auto top_up = [&] {
    while (open_[1] < 4) add(1, 4, {.max_tokens = 24, .use_beam_search = true, .beam_width = 4});
    while (open_[2] < 12) add(2, 4, {.max_tokens = 24});
  };
  for (int i = 0; i < 4000; ++i) {
    top_up();
    step();
  }
  const double ratio = static_cast<double>(tokens_[1]) / static_cast<double>(tokens_[2]);
  EXPECT_NEAR(ratio, 1.0, 0.15);
}

TEST_F(Shares, LengthsThatChangeAllTheTimeAreSharedEvenly) {
  const auto top_up = [&](int round) {
    const int length = round % 400 < 100 ? 1 : 1 + round % 60;
    while (open_[1] < 12) add(1, 4, {.max_tokens = length});
    while (open_[2] < 12) add(2, 4, {.max_tokens = 20});
  };
  for (int i = 0; i < 6000; ++i) {
    top_up(i);
    step();
  }
  const double ratio = static_cast<double>(tokens_[1]) / static_cast<double>(tokens_[2]);
  EXPECT_NEAR(ratio, 1.0, 0.1);
}

// ---- a step, its seats and its blocks ----

class SharedSteps : public Shares {
 protected:
  explicit SharedSteps(const SchedulerConfig& config = large()) : Shares(config) {
    driver_.scheduler.set_preemption_costs({.seconds_per_recomputed_token = 0.0025});  // 40 in 0.1 s
    add(2, 4, {.max_tokens = 1});                                                      // somebody else has been here
    while (open_[2] > 0) step();
  }
  static SchedulerConfig large() {
    SchedulerConfig config = Shares::config();
    config.max_num_seqs = 32;
    config.max_num_batched_tokens = 64;
    config.tenant_step_seconds = 0.1;
    config.num_blocks = 640;
    return config;
  }

  // Of the step planned last.
  int64_t planned(int tenant) const {
    int64_t sum = 0;
    for (const ScheduledSequence& run : driver_.plan.scheduled) {
      if (tenant_of_.at(run.id) == tenant) sum += run.num_new_tokens;
    }
    return sum;
  }
  // Steps from now to the request's first token.
  int steps_to_start(SequenceId id) {
    for (int steps = 1; steps < 1000; ++steps) {
      step();
      const ScheduledSequence* run = driver_.run_of(id);
      if (run != nullptr && run->samples) return steps;
    }
    return 1000;
  }
  void finish() {
    while (open_[1] > 0 || open_[2] > 0) step();
  }
};

TEST_F(SharedSteps, ALongPromptOfOneIsCutSmallWhileAnotherHasWork) {
  add(1, 250, {.max_tokens = 2});
  step();
  EXPECT_EQ(planned(1), 40) << "what 0.1 s are: nobody is to wait longer for the step under way";
  const SequenceId light = add(2, 30, {.max_tokens = 6});
  EXPECT_EQ(steps_to_start(light), 1) << "who was served least has all it wants";
  while (open_[2] > 0) {
    EXPECT_GE(planned(1), 1) << "the other goes on";
    EXPECT_LE(planned(1) + planned(2), 40);
    step();
  }
  finish();
}

class SharedStepsOfLongContexts : public SharedSteps {
 protected:
  SharedStepsOfLongContexts()
      : SharedSteps([] {
          SchedulerConfig config = large();
          config.tokens_per_position = 0.01;
          return config;
        }()) {}
};

TEST_F(SharedStepsOfLongContexts, ATokenCostsMoreTheMoreItAttendsTo) {
  add(1, 250, {.max_tokens = 2});
  step();
  EXPECT_EQ(planned(1), 34) << "34 x (1 + 0.01 x 17) = 39.8 of 40";
  while (driver_.plan.scheduled.front().num_computed_tokens < 200) step();
  EXPECT_LE(planned(1), 13) << "each as much as three at the beginning";
  EXPECT_GE(planned(1), 11);
  finish();
}

TEST_F(SharedSteps, AFloodThatHasAllSeatsLetsAnotherIn) {
  for (int i = 0; i < 100; ++i) add(1, 4, {.max_tokens = 100});
  for (int i = 0; i < 30; ++i) step();
  EXPECT_EQ(driver_.scheduler.stats().running, 32);
  const SequenceId light = add(2, 8, {.max_tokens = 4});
  EXPECT_EQ(steps_to_start(light), 1);
  EXPECT_EQ(driver_.scheduler.stats().running, 33) << "one more than have a row in a step";
  step();
  EXPECT_EQ(planned(1), 19) << "the rest of half a step: another may come";
  finish();
}

TEST_F(SharedSteps, BeamsThatTakeAllSeatsLetAnotherInAndGoOn) {
  const SequenceId beams = add(1, 4, {.max_tokens = 40, .use_beam_search = true, .beam_width = 32});
  for (int i = 0; i < 4; ++i) step();
  EXPECT_EQ(driver_.scheduler.stats().running, 32);
  const SequenceId light = add(2, 8, {.max_tokens = 20});
  EXPECT_EQ(steps_to_start(light), 1);
  step();
  EXPECT_GE(planned(1), 1);
  EXPECT_LE(planned(1), 31) << "all other rows";
  EXPECT_EQ(planned(2), 1);
  finish();
  EXPECT_GT(beams, 0u);
}

TEST_F(SharedSteps, AFloodOfLongPromptsLeavesBlocksForAnother) {
  for (int i = 0; i < 30; ++i) add(1, 200, {.max_tokens = 20});
  for (int i = 0; i < 100; ++i) step();
  const SequenceId light = add(2, 200, {.max_tokens = 4});
  EXPECT_LE(steps_to_start(light), 9) << "of 40 tokens, half of them the other's once it has had one step of its own";
  EXPECT_EQ(driver_.scheduler.stats().preemptions, 0u);
  finish();
}

TEST_F(SharedSteps, APromptThatIsUnderWayDoesNotHoldUpAnothers) {
  add(1, 250, {.max_tokens = 2});
  step();
  const SequenceId light = add(2, 80, {.max_tokens = 2});
  EXPECT_EQ(steps_to_start(light), 2) << "in parts, beside the other's";
  finish();
}

TEST_F(SharedSteps, RowsThatAskMuchOfTheHostTakeTurnsWhileAnotherHasWork) {
  for (int i = 0; i < 3; ++i) {
    SequenceRequest request = make_request(next_, 4, 20);
    request.tenant = 1;
    request.host_work = 200'000'000;
    tenant_of_[next_] = 1;
    last_of_[next_] = next_;
    ++next_;
    ++open_[1];
    ASSERT_TRUE(driver_.add(std::move(request)).ok());
  }
  step();
  step();
  EXPECT_EQ(planned(1), 2);
  add(2, 4, {.max_tokens = 8});
  step();
  while (open_[2] > 0) {
    EXPECT_LE(planned(1), 2) << "three are more than 0.1 s";
    step();
  }
  finish();
}

// Answers of a flood grow until they have all blocks that they may.
TEST_F(SharedSteps, AFloodThatGrowsPreemptsItsOwn) {
  for (int i = 0; i < 32; ++i) add(1, 10, {.max_tokens = 200});
  while (driver_.scheduler.stats().preemptions == 0) step();
  std::vector<int> waits;
  for (int i = 0; i < 20; ++i) {
    const SequenceId light = add(2, 30, {.max_tokens = 40});
    waits.push_back(steps_to_start(light));
    int steps = 0;
    while (open_[2] > 0) {
      step();
      ++steps;
      for (const SequenceId id : driver_.scheduler.last_preempted()) EXPECT_EQ(tenant_of_.at(id), 1);
    }
    EXPECT_LE(steps, 41) << "a token in each";
  }
  EXPECT_THAT(waits, testing::Each(testing::Le(2)));
  finish();
}

TEST_F(SharedSteps, WhoFindsNoBlockTakesThoseOfWhoeverHasMost) {
  // Three that have few each, together more than is kept for them, beside one that has the rest.
  for (int i = 0; i < 32; ++i) add(1, 10, {.max_tokens = 200});
  for (int i = 0; i < 150; ++i) step();
  std::set<SequenceId> preempted;
  for (const int tenant : {2, 3, 4}) {
    for (int i = 0; i < 2; ++i) add(tenant, 10, {.max_tokens = 130});
  }
  for (int i = 0; i < 140; ++i) {
    step();
    for (const SequenceId id : driver_.scheduler.last_preempted()) EXPECT_EQ(tenant_of_.at(id), 1);
  }
  EXPECT_EQ(open_[2] + open_[3] + open_[4], 0);
  finish();
}

TEST_F(SharedSteps, SecondPromptOfOneThatMayHaveNoMoreUnderWayHoldsUpNobody) {
  add(1, 250, {.max_tokens = 2});
  add(1, 250, {.max_tokens = 2});
  step();
  const SequenceId light = add(2, 8, {.max_tokens = 2});
  EXPECT_EQ(steps_to_start(light), 1);
  finish();
}

TEST_F(SharedSteps, PromptsThatComeTogetherFillOneStepBetweenThem) {
  add(1, 250, {.max_tokens = 2});
  step();
  for (const int tenant : {2, 3}) add(tenant, 35, {.max_tokens = 2});
  step();
  EXPECT_LE(planned(1) + planned(2) + planned(3), 41) << "what 0.1 s are, and the token with which the first goes on";
  EXPECT_GE(planned(1) + planned(2) + planned(3), 38);
  finish();
}

TEST_F(SharedSteps, APromptThatIsBegunIsDoneBeforeWorkOfAnotherWhoHasMuchOfIt) {
  for (int i = 0; i < 8; ++i) add(3, 30, {.max_tokens = 1});  // 2 has been away, 3 has not
  while (open_[3] > 0) step();
  const SequenceId light = add(2, 60, {.max_tokens = 2});
  step();
  EXPECT_EQ(planned(2), 40);
  for (int i = 0; i < 10; ++i) add(1, 200, {.max_tokens = 2});
  EXPECT_EQ(steps_to_start(light), 1);
  finish();
}

TEST_F(SharedSteps, AStepIsLongEnoughForAPromptAndWhoeverHasItsTurnBefore) {
  for (int i = 0; i < 30; ++i) add(1, 4, {.max_tokens = 100});
  for (int tenant = 3; tenant < 10; ++tenant) add(tenant, 4, {.max_tokens = 60});
  for (int i = 0; i < 20; ++i) step();
  const SequenceId light = add(2, 20, {.max_tokens = 2});  // half a step
  EXPECT_EQ(steps_to_start(light), 1);
  for (int tenant = 3; tenant < 10; ++tenant) EXPECT_EQ(planned(tenant), 1);
  finish();
  while (driver_.scheduler.has_work()) step();
}

TEST_F(SharedSteps, ManyAnswersOfOneAreMoreThanAPromptThoughTheyWantFewerTokensNow) {
  for (const int tenant : {1, 3}) {
    for (int i = 0; i < 12; ++i) add(tenant, 4, {.max_tokens = 100});
  }
  for (int i = 0; i < 10; ++i) step();
  EXPECT_EQ(planned(1), 12);
  EXPECT_EQ(planned(3), 12);
  for (int i = 0; i < 3; ++i) {
    const SequenceId light = add(2, 35, {.max_tokens = 1});
    EXPECT_EQ(steps_to_start(light), 1);
    for (int steps = 0; steps < 4; ++steps) step();
    EXPECT_EQ(planned(1) + planned(3), 20) << "half a step's: they go on";
  }
  finish();
  while (driver_.scheduler.has_work()) step();
}

TEST_F(SharedSteps, FewAnswersOfOneGoOnBesidePromptsOfAnother) {
  for (int i = 0; i < 3; ++i) add(1, 4, {.max_tokens = 60});
  for (int i = 0; i < 4; ++i) step();
  for (int i = 0; i < 10; ++i) {
    add(2, 35, {.max_tokens = 1});
    step();
    EXPECT_EQ(planned(1), 3) << "a token of each in every step";
  }
  finish();
}

class SharedStepsOfFewBlocks : public SharedSteps {
 protected:
  SharedStepsOfFewBlocks()
      : SharedSteps([] {
          SchedulerConfig config = large();
          config.num_blocks = 96;
          return config;
        }()) {}
};

TEST_F(SharedStepsOfFewBlocks, WhoWaitedAndLeftIsOwedNothing) {
  const SequenceId first = next_;
  for (int i = 0; i < 10; ++i) add(1, 200, {.max_tokens = 50});
  for (int i = 0; i < 10; ++i) step();
  ASSERT_GT(driver_.scheduler.stats().waiting, 0) << "there is no room for two of them";
  for (SequenceId id = first; id < next_; ++id) driver_.scheduler.cancel(id);
  open_[1] = 0;
  for (int i = 0; i < 60; ++i) {
    add(2, 100, {.max_tokens = 2});
    while (open_[2] > 0) step();
  }
  add(3, 8, {.max_tokens = 60});  // whoever is first of all has a token anyway
  step();
  const SequenceId light = add(2, 8, {.max_tokens = 30});
  step();
  for (int i = 0; i < 60; ++i) add(1, 4, {.max_tokens = 30});
  for (int i = 0; i < 12; ++i) {
    step();
    EXPECT_NE(driver_.run_of(light), nullptr) << i << ": one answer beside 60 of another";
  }
  while (driver_.scheduler.has_work()) step();
}

TEST_F(SharedSteps, WhoWaitsIsNotPassedForEverByThoseWhoWantLess) {
  add(1, 150, {.max_tokens = 1});
  int steps = 0;
  for (int tenant = 2; open_[1] > 0 && steps < 200; ++steps) {
    for (int i = 0; i < 2; ++i) add(tenant++, 25, {.max_tokens = 1});  // more than a step is
    step();
  }
  EXPECT_GT(steps, 4) << "those who want less are done first";
  EXPECT_LT(steps, 100);
  while (driver_.scheduler.has_work()) step();
}

TEST_F(SharedSteps, ManyShortPromptsOfOneMakeNoStepLonger) {
  add(1, 4, {.max_tokens = 4});
  const SequenceId light = add(2, 8, {.max_tokens = 40});
  EXPECT_EQ(steps_to_start(light), 1);
  for (int i = 0; i < 30; ++i) add(1, 4, {.max_tokens = 1});
  step();
  EXPECT_LE(planned(1) + planned(2), 21) << "half of one: another may come";
  EXPECT_GE(planned(1) + planned(2), 19);
  finish();
}

TEST_F(SharedSteps, ManyShortRequestsOfOneHaveNoMoreThanTheirShareBesideOneLargeOneOfAnother) {
  const auto top_up = [&] {
    while (open_[1] < 2) add(1, 250, {.max_tokens = 2});
    while (open_[2] < 2) add(2, 10, {.max_tokens = 1});
  };
  for (int i = 0; i < 1000; ++i) {
    top_up();
    step();
  }
  EXPECT_NEAR(static_cast<double>(tokens_[1]) / static_cast<double>(tokens_[2]), 1.0, 0.1);
}

}  // namespace
}  // namespace quire::sched
