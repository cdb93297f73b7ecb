// Groups of layers that keep states: a block has the state behind the last of its tokens that was computed.
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv/cache_manager.h"

namespace quire::kv {
namespace {

using testing::ElementsAre;
using testing::Ge;
using testing::IsEmpty;

std::vector<TokenId> words(int count) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 100);
  return tokens;
}

// A cache of blocks of four tokens, for a group that sees everything and one that keeps states, with steps as a
// scheduler makes them.
class StateCache {
 public:
  StateCache() { begin_step(); }

  void begin_step() {
    manager.begin_step(++step_, /*free_slots=*/true);
    copies.clear();
  }
  // Plans the computing of positions [num_computed, end) in the present step.
  void plan(SequenceBlocks& blocks, int32_t num_computed, int32_t end) {
    ASSERT_TRUE(manager.prepare(blocks, num_computed, end, copies));
    manager.publish({}, words(end), end, blocks);
  }
  // The same in a step of its own.
  void compute(SequenceBlocks& blocks, int32_t num_computed, int32_t end) {
    begin_step();
    plan(blocks, num_computed, end);
  }
  void check(std::initializer_list<const SequenceBlocks*> all) const {
    std::vector<int32_t> holders(static_cast<size_t>(manager.pool().num_blocks()), 0);
    for (const SequenceBlocks* blocks : all) manager.count_holders(*blocks, holders);
    manager.check_invariants(holders);
  }

  CacheManager manager{{.num_blocks = 32, .block_size = 4, .windows = {0, 2}, .keeps_states = true}};
  std::vector<BlockCopy> copies;

 private:
  uint64_t step_ = 0;
};

TEST(States, OfTheBlockBeforeTheNextTokenAloneAreHeld) {
  StateCache cache;
  SequenceBlocks a;
  cache.compute(a, 0, 10);
  cache.compute(a, 10, 12);
  EXPECT_THAT(a.table(1), ElementsAre(kNoBlock, kNoBlock, Ge(0)));
  // Position 12 reads the state behind 11, and leaves its own in another block.
  cache.compute(a, 12, 13);
  EXPECT_THAT(a.table(1), ElementsAre(kNoBlock, kNoBlock, Ge(0), Ge(0)));
  cache.compute(a, 13, 14);
  EXPECT_THAT(a.table(1), ElementsAre(kNoBlock, kNoBlock, kNoBlock, Ge(0)));
  cache.check({&a});
}

TEST(States, ATextIsFoundUpToItsLastWholeBlockAndNeverWhole) {
  StateCache cache;
  SequenceBlocks a, b, c;
  cache.compute(a, 0, 12);
  cache.begin_step();
  EXPECT_EQ(cache.manager.find_prefix({}, words(12), b), 8)
      << "the state behind the last token is no use to compute it";
  EXPECT_THAT(b.table(1), ElementsAre(kNoBlock, Ge(0)));
  cache.plan(b, 8, 12);
  EXPECT_THAT(cache.copies, IsEmpty());
  EXPECT_EQ(cache.manager.find_prefix({}, words(13), c), 12);
  cache.check({&a, &b, &c});
}

TEST(States, WhatThisVeryStepLeavesIsNotFoundInIt) {
  StateCache cache;
  SequenceBlocks a, b;
  cache.compute(a, 0, 12);
  EXPECT_EQ(cache.manager.find_prefix({}, words(13), b), 0);
  cache.manager.release(b);
  cache.begin_step();
  EXPECT_EQ(cache.manager.find_prefix({}, words(13), b), 12);
  cache.check({&a, &b});
}

}  // namespace
}  // namespace quire::kv
