#include "kv/block_pool.h"

#include <algorithm>
#include <deque>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::kv {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<BlockId> taken(BlockPool& pool, int32_t count) {
  std::vector<BlockId> blocks;
  EXPECT_TRUE(pool.allocate(count, blocks));
  return blocks;
}

TEST(BlocksForTokens, RoundsUpToWholeBlocks) {
  EXPECT_EQ(blocks_for_tokens(0, 16), 0);
  EXPECT_EQ(blocks_for_tokens(1, 16), 1);
  EXPECT_EQ(blocks_for_tokens(16, 16), 1);
  EXPECT_EQ(blocks_for_tokens(17, 16), 2);
  EXPECT_EQ(blocks_for_tokens(5, 1), 5);
  EXPECT_EQ(blocks_for_tokens(int64_t{1} << 40, 16), int64_t{1} << 36);
}

TEST(BlockPool, GivenAFreshPoolThenEveryBlockIsFreeAndBlank) {
  const BlockPool pool(5);
  EXPECT_EQ(pool.num_blocks(), 5);
  EXPECT_EQ(pool.num_free(), 5);
  EXPECT_EQ(pool.num_cached(), 0);
  EXPECT_EQ(pool.num_used(), 0);
  EXPECT_EQ(pool.reference_count(4), 0);
  EXPECT_FALSE(pool.cached(4));
  pool.check_invariants();
}

TEST(BlockPool, WhenBlocksAreAllocatedThenTheyAreAppendedWithOneHolderEach) {
  BlockPool pool(4);
  std::vector<BlockId> blocks = {77};
  ASSERT_TRUE(pool.allocate(3, blocks));
  EXPECT_THAT(blocks, ElementsAre(77, 0, 1, 2));
  EXPECT_EQ(pool.reference_count(1), 1);
  EXPECT_EQ(pool.num_used(), 3);
  pool.check_invariants();
}

TEST(BlockPool, WhenFewerAreFreeThanAskedThenNothingIsTaken) {
  BlockPool pool(4);
  std::vector<BlockId> blocks;
  EXPECT_FALSE(pool.allocate(5, blocks));
  EXPECT_THAT(blocks, IsEmpty());
  EXPECT_EQ(pool.num_free(), 4);
  EXPECT_TRUE(pool.allocate(4, blocks));
  EXPECT_FALSE(pool.allocate(1, blocks));
  EXPECT_TRUE(pool.allocate(0, blocks));
  pool.check_invariants();
}

TEST(BlockPool, TheBlankBlockReleasedLastIsHandedOutFirst) {
  BlockPool pool(4);
  taken(pool, 3);  // 0 1 2; 3 is free
  pool.release(2);
  pool.release(0);
  EXPECT_THAT(taken(pool, 3), ElementsAre(0, 2, 3));
  pool.check_invariants();
}

TEST(BlockPool, CachedBlocksGoAfterTheBlankOnesAndTheLongestReleasedFirst) {
  BlockPool pool(4);
  taken(pool, 4);
  for (const BlockId block : {3, 1, 0}) pool.set_cached(block, true);
  for (const BlockId block : {1, 2, 3, 0}) pool.release(block);
  EXPECT_EQ(pool.num_free(), 4);
  EXPECT_EQ(pool.num_cached(), 3);
  pool.check_invariants();
  EXPECT_THAT(taken(pool, 4), ElementsAre(2, 1, 3, 0));
  EXPECT_FALSE(pool.cached(1)) << "who allocates a block overwrites it";
  EXPECT_EQ(pool.num_cached(), 0);
  pool.check_invariants();
}

TEST(BlockPool, AFreeCachedBlockThatIsHeldAgainKeepsItsContentsAndGoesToTheBackWhenReleased) {
  BlockPool pool(3);
  taken(pool, 3);
  for (const BlockId block : {0, 1, 2}) {
    pool.set_cached(block, true);
    pool.release(block);
  }
  pool.hold(0);
  EXPECT_EQ(pool.reference_count(0), 1);
  EXPECT_TRUE(pool.cached(0));
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.num_cached(), 2) << "only free ones count";
  pool.check_invariants();
  pool.release(0);
  EXPECT_THAT(taken(pool, 3), ElementsAre(1, 2, 0));
}

TEST(BlockPool, AFreeBlockWhoseContentsAreForgottenIsBlankAgain) {
  BlockPool pool(3);
  taken(pool, 3);
  for (const BlockId block : {0, 1, 2}) {
    pool.set_cached(block, true);
    pool.release(block);
  }
  pool.set_cached(2, false);
  EXPECT_EQ(pool.num_cached(), 2);
  EXPECT_EQ(pool.num_free(), 3);
  pool.check_invariants();
  EXPECT_THAT(taken(pool, 1), ElementsAre(2));
}

TEST(BlockPool, ASharedBlockIsFreeOnlyAfterItsLastHolder) {
  BlockPool pool(2);
  taken(pool, 1);
  pool.hold(0);
  pool.hold(0);
  EXPECT_EQ(pool.reference_count(0), 3);
  pool.release(0);
  pool.release(0);
  EXPECT_EQ(pool.num_used(), 1);
  pool.release(0);
  EXPECT_EQ(pool.num_used(), 0);
  pool.check_invariants();
}

TEST(BlockPoolDeath, ADoubleFreeEndsTheProcess) {
  BlockPool pool(2);
  taken(pool, 1);
  pool.release(0);
  EXPECT_DEATH(pool.release(0), "already free");
}

TEST(BlockPoolDeath, HoldingABlockThatKeepsNothingEndsTheProcess) {
  BlockPool pool(2);
  EXPECT_DEATH(pool.hold(1), "keeps nothing");
}

TEST(BlockPoolDeath, ABlockOutsideThePoolEndsTheProcess) {
  BlockPool pool(2);
  EXPECT_DEATH(pool.release(2), "block 2 of a pool of 2");
  EXPECT_DEATH(pool.release(-1), "block -1");
  EXPECT_DEATH(pool.set_cached(2, true), "block 2");
}

TEST(BlockPool, UnderRandomOperationsItAgreesWithANaiveModel) {
  const unsigned seed = 20240611;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  constexpr BlockId kBlocks = 37;
  std::mt19937 random(seed);
  BlockPool pool(kBlocks);
  std::vector<int> counts(kBlocks, 0);
  std::vector<bool> cached(kBlocks, false);
  std::deque<BlockId> blank;  // the next first
  std::deque<BlockId> keeps;  // the next first
  for (BlockId i = 0; i < kBlocks; ++i) blank.push_back(i);
  std::vector<BlockId> held;  // one entry a reference
  const auto free = [&](BlockId block) {
    if (cached[static_cast<size_t>(block)]) {
      keeps.push_back(block);
    } else {
      blank.push_front(block);
    }
  };
  for (int step = 0; step < 100000; ++step) {
    const auto action = random() % 6;
    const auto any = static_cast<BlockId>(random() % kBlocks);
    if (action <= 1) {
      const auto count = static_cast<int32_t>(random() % 6);
      std::vector<BlockId> expected;
      if (static_cast<size_t>(count) <= blank.size() + keeps.size()) {
        for (int i = 0; i < count; ++i) {
          std::deque<BlockId>& from = blank.empty() ? keeps : blank;
          expected.push_back(from.front());
          from.pop_front();
        }
      }
      std::vector<BlockId> got;
      ASSERT_EQ(pool.allocate(count, got), static_cast<size_t>(count) == expected.size());
      ASSERT_EQ(got, expected);
      for (const BlockId block : got) {
        counts[static_cast<size_t>(block)] = 1;
        cached[static_cast<size_t>(block)] = false;
        held.push_back(block);
      }
    } else if (action == 2 && held.size() < 200) {
      if (counts[static_cast<size_t>(any)] == 0 && !cached[static_cast<size_t>(any)]) continue;
      pool.hold(any);
      if (++counts[static_cast<size_t>(any)] == 1) std::erase(keeps, any);
      held.push_back(any);
    } else if (action == 3) {
      const bool value = random() % 2 == 0;
      pool.set_cached(any, value);
      const bool is_free = counts[static_cast<size_t>(any)] == 0;
      if (is_free) {
        std::erase(keeps, any);
        std::erase(blank, any);
      }
      cached[static_cast<size_t>(any)] = value;
      if (is_free) free(any);
    } else if (!held.empty()) {
      const size_t which = random() % held.size();
      const BlockId block = held[which];
      pool.release(block);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
      if (--counts[static_cast<size_t>(block)] == 0) free(block);
    }
    ASSERT_EQ(pool.num_free(), static_cast<int32_t>(blank.size() + keeps.size()));
    ASSERT_EQ(pool.num_cached(), static_cast<int32_t>(keeps.size()));
    if (step % 50 == 0) {
      pool.check_invariants();
      for (BlockId block = 0; block < kBlocks; ++block) {
        ASSERT_EQ(pool.reference_count(block), counts[static_cast<size_t>(block)]);
        ASSERT_EQ(pool.cached(block), cached[static_cast<size_t>(block)]);
      }
    }
  }
}

}  // namespace
}  // namespace quire::kv
