// The scheduler, the cache and a paged memory under random operations.
#include <cstdio>

#include <gtest/gtest.h>

#include "tests/sched/random_world.h"

namespace quire::sched {
namespace {

// So many operations, and to the end of all requests. False: something has failed.
bool lives(testing_support::World& world, int operations) {
  for (int i = 0; i < operations && !testing::Test::HasFailure(); ++i) world.operation();
  if (!testing::Test::HasFailure()) world.drain();
  return !testing::Test::HasFailure();
}

TEST(SchedulerRandom, EveryAnswerIsAsAloneAndNothingIsLeft) {
  constexpr int kWorlds = 1000;
  constexpr int kOperations = 1000;
  SchedulerStats sum;
  int64_t finished = 0;
  int64_t beams = 0;
  int64_t copies = 0;
  for (unsigned world_number = 0; world_number < kWorlds; ++world_number) {
    const unsigned seed = 9000 + world_number;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    testing_support::World world(seed);
    if (!lives(world, kOperations)) return;
    finished += world.num_finished();
    beams += world.num_beam_answers();
    copies += world.num_copies();
    sum.preemptions += world.stats().preemptions;
    sum.swaps += world.stats().swaps;
    sum.prefix_hit_tokens += world.stats().prefix_hit_tokens;
    sum.drafts += world.stats().drafts;
    sum.draft_tokens += world.stats().draft_tokens;
    sum.accepted_draft_tokens += world.stats().accepted_draft_tokens;
  }
  // The worlds are such that the rare paths are walked too.
  EXPECT_GT(finished, 10000);
  EXPECT_GT(beams, 500);
  EXPECT_GT(copies, 1000);
  EXPECT_GT(sum.preemptions, 1000u);
  EXPECT_GT(sum.swaps, 300u);
  EXPECT_GT(sum.prefix_hit_tokens, 10000);
  EXPECT_GT(sum.drafts, 1000);
  EXPECT_GT(sum.accepted_draft_tokens, 1000);
  EXPECT_GT(sum.draft_tokens - sum.accepted_draft_tokens, 1000);
  std::printf(
      "%d operations from seed 9000: %lld requests finished (%lld beam searches), %lld copies on write, "
      "%llu preemptions (%llu by swapping), %lld tokens found in the prefix cache, %lld of %lld draft tokens "
      "accepted\n",
      kWorlds * kOperations, static_cast<long long>(finished), static_cast<long long>(beams),
      static_cast<long long>(copies), static_cast<unsigned long long>(sum.preemptions),
      static_cast<unsigned long long>(sum.swaps), static_cast<long long>(sum.prefix_hit_tokens),
      static_cast<long long>(sum.accepted_draft_tokens), static_cast<long long>(sum.draft_tokens));
}

// The same with blocks beyond the pool: late, lost, damaged and found again after a restart.
void run_tiered_worlds(testing_support::Tiers tiers, kv::OffloadStatistics& sum, int64_t& finished) {
  constexpr int kWorlds = 300;
  constexpr int kOperations = 700;
  for (unsigned world_number = 0; world_number < kWorlds; ++world_number) {
    const unsigned seed = 77000 + world_number;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    testing_support::World world(seed, /*drafts=*/true, tiers);
    for (int life = 0; life < 2; ++life) {
      if (life > 0) world.restart();
      for (int i = 0; i < kOperations && !testing::Test::HasFailure(); ++i) world.operation();
      world.drain();
      if (testing::Test::HasFailure()) return;
    }
    finished += world.num_finished();
    sum.stored_blocks += world.offload().stored_blocks;
    sum.loaded_blocks += world.offload().loaded_blocks;
    sum.fetched_blocks += world.offload().fetched_blocks;
    sum.failed_fetches += world.offload().failed_fetches;
    sum.written_blocks += world.offload().written_blocks;
    sum.skipped_blocks += world.offload().skipped_blocks;
  }
}

TEST(SchedulerRandom, BlocksInHostMemoryChangeNoAnswer) {
  kv::OffloadStatistics sum;
  int64_t finished = 0;
  run_tiered_worlds(testing_support::Tiers::kMemory, sum, finished);
  EXPECT_GT(finished, 5000);
  EXPECT_GT(sum.stored_blocks, 5000);
  EXPECT_GT(sum.loaded_blocks, 1000);
  EXPECT_EQ(sum.written_blocks, 0);
}

TEST(SchedulerRandom, BlocksOnDiskChangeNoAnswer) {
  kv::OffloadStatistics sum;
  int64_t finished = 0;
  run_tiered_worlds(testing_support::Tiers::kDisk, sum, finished);
  EXPECT_GT(finished, 5000);
  EXPECT_GT(sum.loaded_blocks, 1000);
  EXPECT_GT(sum.written_blocks, 1000);
  EXPECT_GT(sum.fetched_blocks, 300);
  EXPECT_GT(sum.failed_fetches, 20);
  EXPECT_GT(sum.skipped_blocks, 100) << "the disk is never behind";
  std::printf("%lld blocks stored, %lld loaded, %lld written, %lld fetched, %lld lost on the way, %lld skipped\n",
              static_cast<long long>(sum.stored_blocks), static_cast<long long>(sum.loaded_blocks),
              static_cast<long long>(sum.written_blocks), static_cast<long long>(sum.fetched_blocks),
              static_cast<long long>(sum.failed_fetches), static_cast<long long>(sum.skipped_blocks));
}

// Recurrent layers go on from a state, which is of one position and does not go back: behind it are drafts that held.
TEST(SchedulerRandom, StatesAreThoseOfTheTextBefore) {
  int64_t finished = 0;
  int64_t beams = 0;
  SchedulerStats sum;
  for (unsigned seed = 3000; seed < 3800; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto tiers = static_cast<testing_support::Tiers>(seed % 3);
    testing_support::World world(seed, /*drafts=*/seed % 2 == 0, tiers, /*loses_runner=*/seed % 9 == 0,
                                 /*pipeline=*/seed % 7 == 0, /*states=*/true);
    if (!lives(world, 700)) return;
    finished += world.num_finished();
    beams += world.num_beam_answers();
    sum.preemptions += world.stats().preemptions;
    sum.swaps += world.stats().swaps;
    sum.prefix_hit_tokens += world.stats().prefix_hit_tokens;
    sum.draft_tokens += world.stats().draft_tokens;
    sum.accepted_draft_tokens += world.stats().accepted_draft_tokens;
  }
  EXPECT_GT(sum.accepted_draft_tokens, 500);
  EXPECT_GT(sum.draft_tokens - sum.accepted_draft_tokens, 500);
  EXPECT_GT(finished, 5000);
  EXPECT_GT(beams, 200);
  EXPECT_GT(sum.preemptions, 300u);
  EXPECT_GT(sum.swaps, 30u);
  EXPECT_GT(sum.prefix_hit_tokens, 2000);
}

TEST(SchedulerRandom, ARunnerThatIsLostChangesNoAnswer) {
  int64_t lost = 0;
  int64_t finished = 0;
  int64_t beams = 0;
  for (unsigned seed = 500; seed < 700; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    testing_support::World world(seed, /*drafts=*/true, testing_support::Tiers::kNone, /*loses_runner=*/true);
    if (!lives(world, 1000)) return;
    lost += world.num_lost_runners();
    finished += world.num_finished();
    beams += world.num_beam_answers();
  }
  EXPECT_GT(lost, 4000);
  EXPECT_GT(finished, 1500);
  EXPECT_GT(beams, 50);
}

// Stages at work on steps of their own, with beams, drafts, swap, tenants, cancels and runners that are lost.
TEST(SchedulerRandom, APipelineChangesNoAnswer) {
  int64_t finished = 0;
  int64_t beams = 0;
  int64_t accepted = 0;
  uint64_t preemptions = 0;
  for (unsigned seed = 4000; seed < 4400; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    testing_support::World world(seed, /*drafts=*/true, testing_support::Tiers::kNone, /*loses_runner=*/seed % 4 == 0,
                                 /*pipeline=*/true);
    if (!lives(world, 1000)) return;
    finished += world.num_finished();
    beams += world.num_beam_answers();
    accepted += world.stats().accepted_draft_tokens;
    preemptions += world.stats().preemptions;
  }
  EXPECT_GT(finished, 4000);
  EXPECT_GT(beams, 200);
  EXPECT_GT(accepted, 400);
  EXPECT_GT(preemptions, 400u);
}

// Found by bench/scheduler_soak.cpp.
TEST(SchedulerRandom, WorldsThatOnceFailed) {
  // 1001639: beams that came back one by one after a preemption left no room to the last of them, and were preempted
  // for it, for ever.
  // 1017338: a source found its prompt in blocks that another filled in the same step, and its fork copied one of them.
  // 37018837: the same, where the source itself had come in with that step and copied a block in it.
  // 37042787: a call that planned nothing left a mark of the step, so that a victim was never free to go.
  for (const unsigned seed : {1001639u, 1017338u, 37018837u, 37042787u}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    testing_support::World world(seed, /*drafts=*/false);
    for (int i = 0; i < 1000 && !testing::Test::HasFailure(); ++i) world.operation();
    world.drain();
  }
}

}  // namespace
}  // namespace quire::sched
