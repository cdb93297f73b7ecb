// Random operations on the scheduler and a paged memory (tests/sched/random_world.h), as many as asked for:
//
//   quire_soak_scheduler [OPERATIONS [SEED]]
//
// Worlds of 1,000 operations each, of rising seeds; invariants are checked after every operation, every answer against
// the same request alone. Totals are printed on the way. Ends at the first violation, with the seed that shows it.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

#include "tests/sched/random_world.h"

namespace quire::sched {
namespace {

int64_t operations_wanted = 100'000'000;
unsigned first_seed = 1'000'000;

TEST(SchedulerSoak, EveryAnswerIsAsAloneAndNothingIsLeft) {
  constexpr int64_t kOperations = 1000;
  const auto begin = std::chrono::steady_clock::now();
  int64_t operations = 0;
  int64_t finished = 0;
  int64_t beams = 0;
  int64_t copies = 0;
  uint64_t preemptions = 0;
  uint64_t swaps = 0;
  int64_t hits = 0;
  for (unsigned seed = first_seed; operations < operations_wanted; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    testing_support::World world(seed);
    for (int64_t i = 0; i < kOperations && !testing::Test::HasFailure(); ++i) world.operation();
    if (!testing::Test::HasFailure()) world.drain();
    if (testing::Test::HasFailure()) {
      std::printf("seed %u fails\n", seed);
      return;
    }
    operations += kOperations;
    finished += world.num_finished();
    beams += world.num_beam_answers();
    copies += world.num_copies();
    const SchedulerStats stats = world.stats();
    preemptions += stats.preemptions;
    swaps += stats.swaps;
    hits += stats.prefix_hit_tokens;
    if (operations % 1'000'000 != 0 && operations < operations_wanted) continue;
    std::printf(
        "seeds %u to %u: %lld operations, 0 violations; %lld requests finished (%lld beam searches), %lld copies "
        "on write, %llu preemptions (%llu by swapping), %lld tokens found in the prefix cache; %.0f s\n",
        first_seed, seed, static_cast<long long>(operations), static_cast<long long>(finished),
        static_cast<long long>(beams), static_cast<long long>(copies), static_cast<unsigned long long>(preemptions),
        static_cast<unsigned long long>(swaps), static_cast<long long>(hits),
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    std::fflush(stdout);
  }
}

}  // namespace

int soak_main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1) operations_wanted = std::strtoll(argv[1], nullptr, 10);
  if (argc > 2) first_seed = static_cast<unsigned>(std::strtoul(argv[2], nullptr, 10));
  return RUN_ALL_TESTS();
}

}  // namespace quire::sched

int main(int argc, char** argv) {
  return quire::sched::soak_main(argc, argv);
}
