// When contexts are cut.
#include "ops/cuda/attention_waves.h"

#include <gtest/gtest.h>

namespace quire::ops::cuda {
namespace {

constexpr int64_t kSplit = 256;

// So many sequences as long, of 8 kv heads.
DecodedContexts even(int64_t sequences, int64_t context) {
  return {.num_sequences = sequences, .blocks_each = 8, .longest = context, .total = sequences * context};
}

TEST(CutContexts, AreThoseOfFewSequences) {
  EXPECT_TRUE(cuts_contexts(even(1, 8192), kSplit));
  EXPECT_TRUE(cuts_contexts(even(8, 8192), kSplit));
  EXPECT_FALSE(cuts_contexts(even(1, 256), kSplit)) << "there is one split";
  EXPECT_FALSE(cuts_contexts(even(1, 300), kSplit)) << "folding costs more than the second split";
  EXPECT_FALSE(cuts_contexts({}, kSplit));
}

// 34 sequences have 272 blocks, 8 more than run at once: whole, they take as long as 66 sequences.
TEST(CutContexts, AreThoseWhoseLastRoundIsNearlyEmpty) {
  EXPECT_FALSE(cuts_contexts(even(33, 4096), kSplit)) << "264 blocks, one round";
  EXPECT_TRUE(cuts_contexts(even(34, 4096), kSplit));
  EXPECT_FALSE(cuts_contexts(even(66, 4096), kSplit)) << "two full rounds";
  EXPECT_FALSE(cuts_contexts(even(256, 1024), kSplit)) << "7.8 rounds of 8";
}

TEST(CutContexts, AreThoseOfWhichOneIsLong) {
  DecodedContexts contexts = even(256, 1024);
  contexts.longest = 32768;
  contexts.total += 32768 - 1024;
  EXPECT_TRUE(cuts_contexts(contexts, kSplit)) << "it would walk alone for three quarters of the time";
  contexts.longest = 8192;
  EXPECT_FALSE(cuts_contexts(contexts, kSplit)) << "the others take as long";
}

TEST(SplitsOfBlock, LeaveThreeRoundsOfBlocks) {
  EXPECT_EQ(splits_of_block(even(1, 8192), kSplit), 1);
  EXPECT_EQ(splits_of_block(even(8, 8192), kSplit), 2) << "2,048 splits, 1,024 blocks";
  EXPECT_EQ(splits_of_block(even(34, 4096), kSplit), 5) << "4,352 splits, 871 blocks";
  EXPECT_EQ(splits_of_block({}, kSplit), 1);
}

}  // namespace
}  // namespace quire::ops::cuda
