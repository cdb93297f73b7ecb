// Fair shares as requests experience them: whose lengths change, who cancels, who searches with beams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/sched/paged_driver.h"

namespace quire::sched {
namespace {

using testing_support::make_request;
using testing_support::PagedDriver;

class Shares : public testing::Test {
 protected:
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

  PagedDriver driver_{config()};
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

}  // namespace
}  // namespace quire::sched
