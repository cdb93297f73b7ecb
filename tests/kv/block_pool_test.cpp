#include "kv/block_pool.h"

#include <algorithm>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv/block_table.h"

namespace quire::kv {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(BlocksForTokens, RoundsUpToWholeBlocks) {
  EXPECT_EQ(blocks_for_tokens(0, 16), 0);
  EXPECT_EQ(blocks_for_tokens(1, 16), 1);
  EXPECT_EQ(blocks_for_tokens(16, 16), 1);
  EXPECT_EQ(blocks_for_tokens(17, 16), 2);
  EXPECT_EQ(blocks_for_tokens(5, 1), 5);
  EXPECT_EQ(blocks_for_tokens(int64_t{1} << 40, 16), int64_t{1} << 36);
}

TEST(BlockPool, GivenAFreshPoolThenEveryBlockIsFree) {
  const BlockPool pool(5, 16);
  EXPECT_EQ(pool.num_blocks(), 5);
  EXPECT_EQ(pool.block_size(), 16);
  EXPECT_EQ(pool.num_free(), 5);
  EXPECT_EQ(pool.num_used(), 0);
  EXPECT_EQ(pool.reference_count(4), 0);
  pool.check_invariants();
}

TEST(BlockPool, WhenBlocksAreAllocatedThenTheyAreAppendedWithOneHolderEach) {
  BlockPool pool(4, 16);
  std::vector<BlockId> blocks = {77};
  ASSERT_TRUE(pool.allocate(3, blocks));
  EXPECT_THAT(blocks, ElementsAre(77, 0, 1, 2));
  EXPECT_EQ(pool.reference_count(1), 1);
  EXPECT_EQ(pool.num_used(), 3);
  pool.check_invariants();
}

TEST(BlockPool, WhenFewerAreFreeThanAskedThenNothingIsTaken) {
  BlockPool pool(4, 16);
  std::vector<BlockId> blocks;
  EXPECT_FALSE(pool.allocate(5, blocks));
  EXPECT_THAT(blocks, IsEmpty());
  EXPECT_EQ(pool.num_free(), 4);
  EXPECT_TRUE(pool.allocate(4, blocks));
  EXPECT_FALSE(pool.allocate(1, blocks));
  EXPECT_TRUE(pool.allocate(0, blocks));
  pool.check_invariants();
}

TEST(BlockPool, TheLongestFreeBlockIsHandedOutFirst) {
  BlockPool pool(4, 16);
  std::vector<BlockId> blocks;
  ASSERT_TRUE(pool.allocate(3, blocks));  // 0 1 2; 3 is free
  pool.release(std::vector<BlockId>{2});
  pool.release(std::vector<BlockId>{0});
  std::vector<BlockId> again;
  ASSERT_TRUE(pool.allocate(3, again));
  EXPECT_THAT(again, ElementsAre(3, 2, 0));
  pool.check_invariants();
}

TEST(BlockPool, ASharedBlockIsFreeOnlyAfterItsLastHolder) {
  BlockPool pool(2, 16);
  std::vector<BlockId> blocks;
  ASSERT_TRUE(pool.allocate(1, blocks));
  pool.share(blocks);
  pool.share(blocks);
  EXPECT_EQ(pool.reference_count(blocks[0]), 3);
  pool.release(blocks);
  pool.release(blocks);
  EXPECT_EQ(pool.num_used(), 1);
  pool.release(blocks);
  EXPECT_EQ(pool.num_used(), 0);
  pool.check_invariants();
}

TEST(BlockPoolDeath, ADoubleFreeEndsTheProcess) {
  BlockPool pool(2, 16);
  std::vector<BlockId> blocks;
  ASSERT_TRUE(pool.allocate(1, blocks));
  pool.release(blocks);
  EXPECT_DEATH(pool.release(blocks), "already free");
  EXPECT_DEATH(pool.share(blocks), "free and cannot be shared");
}

TEST(BlockPoolDeath, ABlockOutsideThePoolEndsTheProcess) {
  BlockPool pool(2, 16);
  EXPECT_DEATH(pool.release(std::vector<BlockId>{2}), "block 2 of a pool of 2");
  EXPECT_DEATH(pool.release(std::vector<BlockId>{-1}), "block -1");
}

TEST(BlockPool, UnderRandomOperationsCountsAndFreeListAgreeWithANaiveModel) {
  const unsigned seed = 20240611;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  BlockPool pool(37, 4);
  std::vector<int> counts(37, 0);
  std::vector<BlockId> free_in_order(37);
  for (int i = 0; i < 37; ++i) free_in_order[static_cast<size_t>(i)] = i;
  std::vector<BlockId> held;  // one entry a reference
  for (int step = 0; step < 100000; ++step) {
    const auto action = random() % 3;
    if (action == 0) {
      const auto count = static_cast<int32_t>(random() % 6);
      std::vector<BlockId> got;
      const bool expected = static_cast<size_t>(count) <= free_in_order.size();
      ASSERT_EQ(pool.allocate(count, got), expected);
      if (expected) {
        const std::vector<BlockId> front(free_in_order.begin(), free_in_order.begin() + count);
        ASSERT_EQ(got, front);
        free_in_order.erase(free_in_order.begin(), free_in_order.begin() + count);
        for (BlockId block : got) {
          counts[static_cast<size_t>(block)] = 1;
          held.push_back(block);
        }
      }
    } else if (!held.empty()) {
      const size_t which = random() % held.size();
      const BlockId block = held[which];
      if (action == 1 && held.size() < 200) {
        pool.share(std::vector<BlockId>{block});
        ++counts[static_cast<size_t>(block)];
        held.push_back(block);
      } else {
        pool.release(std::vector<BlockId>{block});
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
        if (--counts[static_cast<size_t>(block)] == 0) free_in_order.push_back(block);
      }
    }
    ASSERT_EQ(pool.num_free(), static_cast<int32_t>(free_in_order.size()));
    if (step % 50 == 0) {
      pool.check_invariants();
      for (BlockId block = 0; block < 37; ++block) {
        ASSERT_EQ(pool.reference_count(block), counts[static_cast<size_t>(block)]);
      }
    }
  }
}

TEST(BlockTable, GrowsToCoverTokensAndTakesNoMoreThanItNeeds) {
  BlockPool pool(8, 4);
  BlockTable table;
  EXPECT_EQ(table.blocks_missing(9, 4), 3);
  EXPECT_TRUE(table.grow(pool, 0));
  EXPECT_EQ(table.num_blocks(), 0);
  EXPECT_TRUE(table.grow(pool, 4));
  EXPECT_EQ(table.num_blocks(), 1);
  EXPECT_TRUE(table.grow(pool, 5));
  EXPECT_EQ(table.num_blocks(), 2);
  EXPECT_TRUE(table.grow(pool, 8));
  EXPECT_TRUE(table.grow(pool, 3));  // never shrinks
  EXPECT_EQ(table.num_blocks(), 2);
  EXPECT_EQ(table.blocks_missing(9, 4), 1);
  EXPECT_THAT(table.ids(), ElementsAre(0, 1));
}

TEST(BlockTable, WhenThePoolHasTooFewThenItKeepsWhatItHas) {
  BlockPool pool(3, 4);
  BlockTable table;
  ASSERT_TRUE(table.grow(pool, 8));
  EXPECT_FALSE(table.grow(pool, 20));
  EXPECT_EQ(table.num_blocks(), 2);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_TRUE(table.grow(pool, 12));
}

TEST(BlockTable, WhenReleasedThenItsFirstBlockIsTheLastToBeReused) {
  BlockPool pool(3, 4);
  BlockTable table;
  ASSERT_TRUE(table.grow(pool, 12));
  table.release(pool);
  EXPECT_EQ(table.num_blocks(), 0);
  EXPECT_EQ(pool.num_free(), 3);
  table.release(pool);  // nothing left to release
  std::vector<BlockId> blocks;
  ASSERT_TRUE(pool.allocate(3, blocks));
  EXPECT_THAT(blocks, ElementsAre(2, 1, 0));
}

}  // namespace
}  // namespace quire::kv
