// Blocks for draft tokens: they come behind a run that is planned and go with what is not accepted.
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv/cache_manager.h"

namespace quire::kv {
namespace {

using testing::IsEmpty;

std::vector<BlockId> blocks_in(const SequenceBlocks& blocks, int32_t group = 0) {
  return {blocks.table(group).begin(), blocks.table(group).end()};
}

// Plans the computing of positions [num_computed, end) of a text in a step of its own.
void compute_text(CacheManager& manager, SequenceBlocks& blocks, int32_t num_computed, int32_t end) {
  static uint64_t step = 0;
  std::vector<TokenId> tokens(static_cast<size_t>(end));
  std::iota(tokens.begin(), tokens.end(), 100);
  std::vector<BlockCopy> copies;
  manager.begin_step(++step, true);
  ASSERT_TRUE(manager.prepare(blocks, num_computed, end, copies));
  ASSERT_THAT(copies, IsEmpty());
  manager.publish({}, tokens, end, blocks);
}

TEST(DraftBlocks, ComeBehindARunAndGoWithWhatIsNotAccepted) {
  CacheManager manager({.num_blocks = 8, .block_size = 4});
  SequenceBlocks blocks;
  compute_text(manager, blocks, 0, 8);
  compute_text(manager, blocks, 8, 9);
  const std::vector<BlockId> before = blocks_in(blocks);
  const uint64_t version = blocks.version();
  EXPECT_TRUE(manager.grow(blocks, 12)) << "the third block has room";
  EXPECT_EQ(blocks.version(), version);
  ASSERT_TRUE(manager.grow(blocks, 18));
  EXPECT_EQ(blocks.num_blocks(), 5);
  EXPECT_FALSE(manager.grow(blocks, 33)) << "more than the pool has";
  EXPECT_EQ(blocks.num_blocks(), 5);
  manager.cut(blocks, 13);
  EXPECT_EQ(blocks.num_blocks(), 4);
  manager.cut(blocks, 9);
  EXPECT_EQ(blocks_in(blocks), before);
  EXPECT_NE(blocks.version(), version);
  EXPECT_EQ(manager.pool().num_used(), 3);
  manager.release(blocks);
}

// A run that ends with its block publishes that, and what comes behind is not copied for it.
TEST(DraftBlocks, BehindABlockThatIsFullAreBlocksOfTheirOwn) {
  CacheManager manager({.num_blocks = 8, .block_size = 4});
  SequenceBlocks blocks;
  compute_text(manager, blocks, 0, 7);
  compute_text(manager, blocks, 7, 8);
  const std::vector<BlockId> before = blocks_in(blocks);
  ASSERT_TRUE(manager.grow(blocks, 11));
  EXPECT_EQ(blocks_in(blocks)[1], before[1]);
  manager.cut(blocks, 8);
  EXPECT_EQ(blocks_in(blocks), before);
  manager.release(blocks);
}

TEST(DraftBlocks, OfLayersWithWindowsEachGroupGrowsAndIsCut) {
  CacheManager manager({.num_blocks = 12, .block_size = 2, .windows = {0, 3}});
  SequenceBlocks blocks;
  compute_text(manager, blocks, 0, 9);
  ASSERT_TRUE(manager.grow(blocks, 12));
  EXPECT_EQ(blocks_in(blocks, 0).size(), 6u);
  EXPECT_EQ(blocks_in(blocks, 1).size(), 6u);
  manager.cut(blocks, 9);
  EXPECT_EQ(blocks_in(blocks, 0).size(), 5u);
  EXPECT_EQ(blocks_in(blocks, 1).size(), 5u);
  manager.release(blocks);
  EXPECT_EQ(manager.pool().num_used(), 0);
}

}  // namespace
}  // namespace quire::kv
