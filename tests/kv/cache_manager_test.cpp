#include "kv/cache_manager.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::kv {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;
using testing::SizeIs;

using Tokens = std::vector<TokenId>;

// `count` tokens from `first` on.
Tokens text(int count, TokenId first = 100) {
  Tokens tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<BlockId> table(const SequenceBlocks& blocks, int32_t group = 0) {
  return {blocks.table(group).begin(), blocks.table(group).end()};
}

auto copy_is(BlockId source, BlockId destination) {
  return AllOf(Field("source", &BlockCopy::source, source), Field("destination", &BlockCopy::destination, destination));
}

CacheConfig blocks_of_four(int32_t num_blocks) {
  return {.num_blocks = num_blocks, .block_size = 4};
}

// A cache with steps as a scheduler makes them.
struct Cache {
  explicit Cache(const CacheConfig& config) : manager(config) { begin_step(); }

  void begin_step(bool free_slots = true) {
    manager.begin_step(++step, free_slots);
    copies.clear();
    swaps.clear();
  }
  // Plans the computing of positions [num_computed, end) in the present step.
  bool plan(SequenceBlocks& blocks, const Tokens& tokens, int32_t num_computed, int32_t end,
            const CacheContext& context = {}) {
    if (!manager.prepare(blocks, num_computed, end, copies)) return false;
    manager.publish(context, tokens, end, blocks);
    return true;
  }
  // The same in a step of its own.
  bool compute(SequenceBlocks& blocks, const Tokens& tokens, int32_t num_computed, int32_t end,
               const CacheContext& context = {}) {
    begin_step();
    return plan(blocks, tokens, num_computed, end, context);
  }
  void check(std::initializer_list<const SequenceBlocks*> all) const {
    std::vector<int32_t> holders(static_cast<size_t>(manager.pool().num_blocks()), 0);
    for (const SequenceBlocks* blocks : all) manager.count_holders(*blocks, holders);
    manager.check_invariants(holders);
  }

  CacheManager manager;
  uint64_t step = 0;
  std::vector<BlockCopy> copies;
  std::vector<SwapCopy> swaps;
  std::vector<OffloadCopy> loads;
};

// ---- finding ----

TEST(FindPrefix, WholeBlocksOfTheSameBeginningAreShared) {
  Cache cache(blocks_of_four(16));
  SequenceBlocks a, b, c;
  const Tokens tokens = text(10);
  ASSERT_TRUE(cache.compute(a, tokens, 0, 10));
  EXPECT_EQ(cache.manager.find_prefix({}, tokens, b), 8);
  EXPECT_THAT(table(b), ElementsAre(a.table(0)[0], a.table(0)[1]));
  Tokens other = tokens;
  other[5] = 1;
  EXPECT_EQ(cache.manager.find_prefix({}, other, c), 4);
  EXPECT_EQ(cache.manager.pool().num_used(), 3);
  EXPECT_EQ(cache.manager.statistics().query_tokens, 20);
  EXPECT_EQ(cache.manager.statistics().hit_tokens, 12);
  cache.check({&a, &b, &c});
}

TEST(FindPrefix, APartlyFilledBlockIsNotFound) {
  Cache cache(blocks_of_four(16));
  SequenceBlocks a, b;
  ASSERT_TRUE(cache.compute(a, text(7), 0, 7));
  EXPECT_EQ(cache.manager.find_prefix({}, text(7), b), 4);
  EXPECT_EQ(b.num_blocks(), 1);
}

TEST(FindPrefix, ABlockComputedInPartsIsFoundOnlyWhenItIsFull) {
  Cache cache(blocks_of_four(16));
  SequenceBlocks a, b;
  ASSERT_TRUE(cache.compute(a, text(12), 0, 3));
  EXPECT_EQ(cache.manager.find_prefix({}, text(12), b), 0);
  cache.manager.release(b);
  ASSERT_TRUE(cache.compute(a, text(12), 3, 4));
  EXPECT_EQ(cache.manager.find_prefix({}, text(12), b), 4);
}

TEST(FindPrefix, ContentsOutliveTheirSequenceUntilTheBlockIsNeeded) {
  Cache cache(blocks_of_four(4));
  SequenceBlocks a, b, c, d;
  ASSERT_TRUE(cache.compute(a, text(13), 0, 12));
  cache.manager.release(a);
  EXPECT_TRUE(a.empty());
  EXPECT_EQ(cache.manager.pool().num_used(), 0);
  EXPECT_EQ(cache.manager.pool().num_cached(), 3);
  EXPECT_EQ(cache.manager.find_prefix({}, text(13), b), 12);
  cache.manager.release(b);
  // Another text takes the blank block and one with contents: the tail of the old text, whose beginning is worth more.
  ASSERT_TRUE(cache.compute(c, text(8, 500), 0, 8));
  EXPECT_EQ(cache.manager.find_prefix({}, text(13), d), 8);
  cache.check({&c, &d});
}

TEST(FindPrefix, WithPrefixCachingOffNothingIsFound) {
  CacheConfig config = blocks_of_four(16);
  config.prefix_caching = false;
  Cache cache(config);
  SequenceBlocks a, b;
  ASSERT_TRUE(cache.compute(a, text(10), 0, 10));
  EXPECT_EQ(cache.manager.find_prefix({}, text(10), b), 0);
  EXPECT_TRUE(b.empty());
  cache.manager.release(a);
  EXPECT_EQ(cache.manager.pool().num_cached(), 0);
}

TEST(FindPrefix, SaltsAndAdaptersShareNothing) {
  Cache cache(blocks_of_four(16));
  SequenceBlocks a, b;
  ASSERT_TRUE(cache.compute(a, text(9), 0, 9, {.salt = "mine"}));
  for (const CacheContext& context :
       {CacheContext{}, CacheContext{.salt = "yours"}, CacheContext{.salt = "mine", .lora_id = 1}}) {
    EXPECT_EQ(cache.manager.find_prefix(context, text(9), b), 0);
    cache.manager.release(b);
  }
  EXPECT_EQ(cache.manager.find_prefix({.salt = "mine"}, text(9), b), 8);
}

TEST(FindPrefix, WhenAllHashesCollideThenTheTokensDecide) {
  CacheConfig config = blocks_of_four(32);
  config.hash = [](const void*, size_t, uint64_t) -> uint64_t { return 5; };
  Cache cache(config);
  std::vector<SequenceBlocks> sequences(4);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(cache.compute(sequences[static_cast<size_t>(i)], text(9, 1000 * i), 0, 9));
  }
  for (int i = 0; i < 4; ++i) {
    SequenceBlocks found;
    EXPECT_EQ(cache.manager.find_prefix({}, text(9, 1000 * i), found), 8);
    EXPECT_EQ(found.table(0)[1], sequences[static_cast<size_t>(i)].table(0)[1]);
    cache.manager.release(found);
  }
  SequenceBlocks none;
  EXPECT_EQ(cache.manager.find_prefix({}, text(9, 7), none), 0);
}

// ---- a full hit ----

TEST(FullHit, TheLastTokenIsComputedIntoACopyOfTheLastBlockOnly) {
  Cache cache(blocks_of_four(16));
  SequenceBlocks a, b;
  const Tokens tokens = text(8);
  ASSERT_TRUE(cache.compute(a, tokens, 0, 8));
  cache.begin_step();
  ASSERT_EQ(cache.manager.find_prefix({}, tokens, b), 7);
  EXPECT_EQ(table(b), table(a));
  EXPECT_EQ(cache.manager.blocks_missing(b, 7, 8), 1);
  ASSERT_TRUE(cache.plan(b, tokens, 7, 8));
  EXPECT_EQ(b.table(0)[0], a.table(0)[0]);
  EXPECT_NE(b.table(0)[1], a.table(0)[1]);
  EXPECT_THAT(cache.copies, ElementsAre(copy_is(a.table(0)[1], b.table(0)[1])));
  EXPECT_FALSE(cache.manager.pool().cached(b.table(0)[1])) << "the text has its block already";
  EXPECT_EQ(cache.manager.statistics().hit_tokens, 7);
  cache.check({&a, &b});
}

TEST(FullHit, WhatThisVeryStepComputesCannotBeCopiedSoItsLastBlockIsComputedAgain) {
  Cache cache(blocks_of_four(16));
  SequenceBlocks a, b;
  const Tokens tokens = text(8);
  ASSERT_TRUE(cache.compute(a, tokens, 0, 8));
  EXPECT_EQ(cache.manager.find_prefix({}, tokens, b), 4);
  ASSERT_TRUE(cache.plan(b, tokens, 4, 8));
  EXPECT_THAT(cache.copies, IsEmpty());
  EXPECT_EQ(b.table(0)[0], a.table(0)[0]);
  cache.check({&a, &b});
}

TEST(FullHit, OfASingleBlockInThisVeryStepFindsNothing) {
  Cache cache(blocks_of_four(16));
  SequenceBlocks a, b;
  ASSERT_TRUE(cache.compute(a, text(4), 0, 4));
  EXPECT_EQ(cache.manager.find_prefix({}, text(4), b), 0);
  EXPECT_EQ(b.num_blocks(), 0);
  cache.manager.release(b);
  cache.begin_step();
  EXPECT_EQ(cache.manager.find_prefix({}, text(4), b), 3);
}

TEST(FullHit, WithoutRoomForTheCopyTheLastBlockIsComputedAgain) {
  for (const int32_t num_blocks : {2, 3}) {
    Cache cache(blocks_of_four(num_blocks));
    SequenceBlocks a, b;
    const Tokens tokens = text(8);
    ASSERT_TRUE(cache.compute(a, tokens, 0, 8));
    cache.manager.release(a);
    cache.begin_step();
    const int32_t found = cache.manager.find_prefix({}, tokens, b);
    EXPECT_EQ(found, num_blocks == 2 ? 4 : 7);
    EXPECT_TRUE(cache.plan(b, tokens, found, 8));
    cache.check({&b});
  }
}

TEST(FullHit, TheSourceOfTheCopyIsNotHandedOutBeforeTheNextStep) {
  Cache cache(blocks_of_four(3));
  SequenceBlocks a, b, c;
  const Tokens tokens = text(8);
  ASSERT_TRUE(cache.compute(a, tokens, 0, 8));
  cache.manager.release(a);
  cache.begin_step();
  ASSERT_EQ(cache.manager.find_prefix({}, tokens, b), 7);
  ASSERT_TRUE(cache.plan(b, tokens, 7, 8));
  ASSERT_THAT(cache.copies, SizeIs(1));
  EXPECT_EQ(cache.manager.pool().num_free(), 0);
  EXPECT_FALSE(cache.plan(c, text(4, 500), 0, 4)) << "it would overwrite what this step copies from";
  cache.check({&b, &c});
  EXPECT_TRUE(cache.compute(c, text(4, 500), 0, 4));
  EXPECT_EQ(c.table(0)[0], cache.copies.empty() ? c.table(0)[0] : kNoBlock);
  cache.check({&b, &c});
}

// ---- looking without holding ----

TEST(LookUp, HoldsAndCountsNothingBeforeItIsAdopted) {
  Cache cache(blocks_of_four(16));
  SequenceBlocks a, b;
  const Tokens tokens = text(10);
  ASSERT_TRUE(cache.compute(a, tokens, 0, 10));
  cache.manager.release(a);
  PrefixMatch match = cache.manager.look_up({}, tokens);
  EXPECT_EQ(match.num_computed(), 8);
  EXPECT_EQ(cache.manager.idle_blocks(match), 2);
  EXPECT_EQ(cache.manager.pool().num_used(), 0);
  EXPECT_EQ(cache.manager.statistics().query_tokens, 0);
  EXPECT_EQ(cache.manager.adopt(std::move(match), b, cache.loads), 8);
  EXPECT_EQ(cache.manager.pool().num_used(), 2);
  EXPECT_EQ(cache.manager.statistics().query_tokens, 10);
  EXPECT_EQ(cache.manager.statistics().hit_tokens, 8);
  cache.check({&b});
}

TEST(LookUp, AMatchHoldsUntilItsTextGoesOn) {
  Cache cache(blocks_of_four(16));
  SequenceBlocks a, other;
  const Tokens tokens = text(20);
  ASSERT_TRUE(cache.compute(a, tokens, 0, 8));
  PrefixMatch match = cache.manager.look_up({}, tokens);
  ASSERT_TRUE(cache.compute(other, text(9, 500), 0, 9));
  const int64_t walked = cache.manager.statistics().walked_blocks;
  EXPECT_TRUE(cache.manager.still_holds(match, tokens)) << "another text is none of its business";
  EXPECT_TRUE(cache.manager.still_holds(match, tokens));
  EXPECT_EQ(cache.manager.statistics().walked_blocks - walked, 1);
  ASSERT_TRUE(cache.compute(a, tokens, 8, 13));
  EXPECT_FALSE(cache.manager.still_holds(match, tokens));
  cache.manager.forget(match);
  match = cache.manager.look_up({}, tokens);
  EXPECT_EQ(match.num_computed(), 12);
  cache.manager.forget(match);
  cache.check({&a, &other});
}

TEST(LookUp, AMatchIsOverWhenOneOfItsBlocksIsTakenOrAllAreForgotten) {
  Cache cache(blocks_of_four(4));
  SequenceBlocks a, other;
  const Tokens tokens = text(13);
  ASSERT_TRUE(cache.compute(a, tokens, 0, 12));
  cache.manager.release(a);
  PrefixMatch match = cache.manager.look_up({}, tokens);
  EXPECT_EQ(match.num_computed(), 12);
  ASSERT_TRUE(cache.compute(other, text(8, 500), 0, 8));
  EXPECT_FALSE(cache.manager.still_holds(match, tokens));
  cache.manager.forget(match);
  match = cache.manager.look_up({}, tokens);
  EXPECT_EQ(match.num_computed(), 8);
  cache.manager.reset_prefix_cache();
  EXPECT_FALSE(cache.manager.still_holds(match, tokens));
  cache.manager.forget(match);
  cache.check({&other});
}

TEST(LookUp, AWholeTextThatCannotBeSharedYetIsLookedUpAgainWhenItCan) {
  Cache cache(blocks_of_four(16));
  SequenceBlocks a;
  const Tokens tokens = text(8);
  ASSERT_TRUE(cache.compute(a, tokens, 0, 8));
  PrefixMatch match = cache.manager.look_up({}, tokens);
  EXPECT_EQ(match.num_computed(), 4) << "the last block is being written by this step";
  EXPECT_TRUE(cache.manager.still_holds(match, tokens));
  cache.begin_step();
  EXPECT_FALSE(cache.manager.still_holds(match, tokens));
  cache.manager.forget(match);
  match = cache.manager.look_up({}, tokens);
  EXPECT_EQ(match.num_computed(), 7);
  EXPECT_EQ(cache.manager.blocks_wanted(match, 8, 8), 1) << "a copy of the last block";
  cache.manager.forget(match);
  cache.check({&a});
}

TEST(LookUp, WhatAdmissionWillTakeIsKnownBefore) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    Cache cache(blocks_of_four(64));
    std::vector<SequenceBlocks> held(4);
    for (SequenceBlocks& blocks : held) {
      Tokens tokens = text(4 + static_cast<int>(random() % 40));
      for (size_t i = random() % 40; i < tokens.size(); ++i) tokens[i] += 1000 + static_cast<TokenId>(random() % 2);
      cache.begin_step();
      const int32_t found = cache.manager.find_prefix({}, tokens, blocks);
      ASSERT_TRUE(cache.plan(blocks, tokens, found, static_cast<int32_t>(tokens.size())));
      if (random() % 2 == 0) cache.manager.release(blocks);
    }
    cache.begin_step();
    const Tokens tokens = text(4 + static_cast<int>(random() % 40));
    const auto end = static_cast<int32_t>(tokens.size());
    PrefixMatch match = cache.manager.look_up({}, tokens);
    const int64_t needed = cache.manager.blocks_wanted(match, end, end) + cache.manager.idle_blocks(match);
    const int32_t free = cache.manager.pool().num_free();
    SequenceBlocks blocks;
    const int32_t computed = cache.manager.adopt(std::move(match), blocks, cache.loads);
    ASSERT_TRUE(cache.manager.prepare(blocks, computed, end, cache.copies));
    EXPECT_EQ(free - cache.manager.pool().num_free(), needed);
    cache.begin_step();
    cache.manager.release(blocks);
    for (SequenceBlocks& one : held) cache.manager.release(one);
    cache.check({});
  }
}

// ---- hits on the way ----

TEST(ExtendPrefix, WhatAnotherComputedMeanwhileIsTakenOver) {
  Cache cache(blocks_of_four(16));
  SequenceBlocks slow, fast;
  const Tokens tokens = text(17);
  ASSERT_TRUE(cache.compute(slow, tokens, 0, 4));
  EXPECT_EQ(cache.manager.find_prefix({}, tokens, fast), 4);
  ASSERT_TRUE(cache.plan(fast, tokens, 4, 12));
  EXPECT_EQ(cache.manager.extend_prefix(tokens, 4, slow), 12);
  EXPECT_EQ(table(slow), table(fast));
  EXPECT_EQ(cache.manager.pool().num_used(), 3);
  cache.check({&slow, &fast});
}

TEST(ExtendPrefix, TheLastTokenIsLeftToCompute) {
  Cache cache(blocks_of_four(16));
  SequenceBlocks slow, fast;
  const Tokens tokens = text(8);
  ASSERT_TRUE(cache.compute(slow, tokens, 0, 4));
  EXPECT_EQ(cache.manager.find_prefix({}, text(9), fast), 4);
  ASSERT_TRUE(cache.compute(fast, text(9), 4, 9));
  EXPECT_EQ(cache.manager.extend_prefix(tokens, 4, slow), 4);
  EXPECT_EQ(cache.manager.extend_prefix(text(9), 4, slow), 8);
}

TEST(ExtendPrefix, InTheMiddleOfABlockNothingIsTakenOver) {
  Cache cache(blocks_of_four(16));
  SequenceBlocks slow, fast;
  ASSERT_TRUE(cache.compute(slow, text(17), 0, 6));
  ASSERT_TRUE(cache.compute(fast, text(17), 0, 16));
  EXPECT_EQ(cache.manager.extend_prefix(text(17), 6, slow), 6);
  EXPECT_EQ(slow.num_blocks(), 2);
}

TEST(Publish, ATextComputedTwiceKeepsItsFirstBlocks) {
  Cache cache(blocks_of_four(16));
  SequenceBlocks a, b, c;
  const Tokens tokens = text(9);
  cache.begin_step();
  ASSERT_TRUE(cache.manager.prepare(a, 0, 9, cache.copies));
  ASSERT_TRUE(cache.manager.prepare(b, 0, 9, cache.copies));
  cache.manager.publish({}, tokens, 9, a);
  cache.manager.publish({}, tokens, 9, b);
  EXPECT_EQ(cache.manager.find_prefix({}, tokens, c), 8);
  EXPECT_EQ(c.table(0)[0], a.table(0)[0]);
  cache.manager.release(b);
  EXPECT_EQ(cache.manager.pool().num_cached(), 0) << "the second's blocks keep nothing that could be found";
  cache.check({&a, &c});
}

// ---- windows ----

TEST(Windows, WhatLiesBehindIsGivenBackInItsGroupOnly) {
  CacheConfig config = blocks_of_four(32);
  config.windows = {0, 5};
  Cache cache(config);
  SequenceBlocks a;
  const Tokens tokens = text(24);
  ASSERT_TRUE(cache.compute(a, tokens, 0, 12));
  EXPECT_EQ(cache.manager.pool().num_used(), 6);
  // Position 12 sees 8 to 12: blocks 0 and 1 are behind. Position 11 still saw 7.
  ASSERT_TRUE(cache.compute(a, tokens, 12, 13));
  EXPECT_THAT(a.table(1), ElementsAre(kNoBlock, kNoBlock, testing::Ge(0), testing::Ge(0)));
  EXPECT_THAT(a.table(0), testing::Each(testing::Ge(0)));
  EXPECT_EQ(cache.manager.pool().num_used(), 6);
  cache.check({&a});
}

TEST(Windows, TheFirstPositionInSightKeepsItsBlock) {
  CacheConfig config = blocks_of_four(32);
  config.windows = {6};
  Cache cache(config);
  SequenceBlocks a;
  ASSERT_TRUE(cache.compute(a, text(24), 0, 12));
  ASSERT_TRUE(cache.compute(a, text(24), 12, 13));  // sees 7 to 12
  EXPECT_THAT(a.table(0), ElementsAre(kNoBlock, testing::Ge(0), testing::Ge(0), testing::Ge(0)));
}

TEST(Windows, AHitNeedsOnlyWhatIsInSight) {
  for (const bool everything_seen : {false, true}) {
    CacheConfig config = blocks_of_four(everything_seen ? 11 : 6);
    config.windows = everything_seen ? std::vector<int32_t>{4, 0} : std::vector<int32_t>{4};
    Cache cache(config);
    SequenceBlocks a, b, c;
    const Tokens tokens = text(18);
    ASSERT_TRUE(cache.compute(a, tokens, 0, 16));
    ASSERT_TRUE(cache.compute(a, tokens, 16, 17));
    cache.manager.release(a);
    // Another text of three blocks takes what is blank and then what was given back first: behind the window.
    ASSERT_TRUE(cache.compute(c, text(12, 500), 0, everything_seen ? 8 : 12));
    cache.begin_step();
    const int32_t found = cache.manager.find_prefix({}, tokens, b);
    if (everything_seen) {
      EXPECT_LE(found, 16);
    } else {
      EXPECT_EQ(found, 16);
      EXPECT_THAT(b.table(0), ElementsAre(kNoBlock, kNoBlock, kNoBlock, testing::Ge(0)));
    }
    cache.check({&b, &c});
  }
}

TEST(Windows, MostBlocksIsNeverExceededAndIsReached) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    const auto between = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    CacheConfig config{.num_blocks = 400, .block_size = between(1, 5)};
    const int32_t window = between(1, 20);
    config.windows = {window};
    const int32_t max_run = between(1, 12);
    const int32_t length = between(1, 80);
    SCOPED_TRACE(testing::Message() << "block " << config.block_size << ", window " << window << ", run " << max_run
                                    << ", length " << length);
    Cache cache(config);
    const int64_t bound = cache.manager.most_blocks(length, max_run);
    SequenceBlocks a;
    int32_t computed = 0;
    int64_t most = 0;
    while (computed < length) {
      const int32_t end = std::min(computed + between(1, max_run), length);
      const int64_t wanted = cache.manager.blocks_wanted(a, computed, length, max_run);
      const int32_t held = cache.manager.pool().num_used();
      ASSERT_LE(held + wanted, bound + (held > 0 ? 1 : 0));
      ASSERT_TRUE(cache.compute(a, text(length), computed, end));
      ASSERT_LE(cache.manager.pool().num_used() - held, wanted);
      most = std::max<int64_t>(most, cache.manager.pool().num_used());
      computed = end;
    }
    ASSERT_LE(most, bound);
    ASSERT_GE(bound, std::min<int64_t>(blocks_for_tokens(length, config.block_size),
                                       blocks_for_tokens(window, config.block_size)));
  }
}

// ---- forks ----

TEST(Fork, AllBlocksAreSharedAndWhoWritesFirstCopiesTheLast) {
  Cache cache(blocks_of_four(16));
  SequenceBlocks parent, child;
  Tokens tokens = text(10);
  ASSERT_TRUE(cache.compute(parent, tokens, 0, 10));
  ASSERT_TRUE(cache.manager.fork(parent, 10, child));
  EXPECT_EQ(table(child), table(parent));
  EXPECT_EQ(cache.manager.pool().num_used(), 3);
  tokens.push_back(1);
  const BlockId last = parent.table(0)[2];
  ASSERT_TRUE(cache.compute(parent, tokens, 10, 11));
  EXPECT_THAT(cache.copies, ElementsAre(copy_is(last, parent.table(0)[2])));
  EXPECT_EQ(child.table(0)[2], last);
  ASSERT_TRUE(cache.compute(child, tokens, 10, 11));
  EXPECT_THAT(cache.copies, IsEmpty()) << "the child is alone with it now";
  cache.check({&parent, &child});
}

TEST(Fork, AtTheEndOfABlockNothingIsCopied) {
  Cache cache(blocks_of_four(16));
  SequenceBlocks parent, child;
  ASSERT_TRUE(cache.compute(parent, text(10), 0, 10));
  ASSERT_TRUE(cache.manager.fork(parent, 8, child));
  EXPECT_EQ(child.num_blocks(), 2);
  ASSERT_TRUE(cache.compute(child, text(12), 8, 9));
  EXPECT_THAT(cache.copies, IsEmpty());
  cache.check({&parent, &child});
}

TEST(Fork, InsideAPublishedBlockTheChildPublishesItsOwnText) {
  Cache cache(blocks_of_four(16));
  SequenceBlocks parent, child, found;
  ASSERT_TRUE(cache.compute(parent, text(9), 0, 9));
  ASSERT_TRUE(cache.manager.fork(parent, 7, child));
  Tokens other = text(7);
  other.push_back(1);
  ASSERT_TRUE(cache.compute(child, other, 7, 8));
  EXPECT_THAT(cache.copies, SizeIs(1));
  other.push_back(2);
  EXPECT_EQ(cache.manager.find_prefix({}, other, found), 8);
  EXPECT_EQ(table(found), table(child));
  cache.check({&parent, &child, &found});
}

TEST(Fork, WhatAnotherFillsInThisVeryStepCannotBeCopiedByAFork) {
  Cache cache(blocks_of_four(16));
  SequenceBlocks producer, parent;
  ASSERT_TRUE(cache.compute(producer, text(8), 0, 8));
  ASSERT_EQ(cache.manager.find_prefix({}, text(9), parent), 8);
  EXPECT_FALSE(cache.manager.may_fork_now(parent, 6));
  EXPECT_TRUE(cache.manager.may_fork_now(parent, 4)) << "at the end of a block nothing is copied";
  cache.begin_step();
  EXPECT_TRUE(cache.manager.may_fork_now(parent, 6));
  cache.check({&producer, &parent});
}

TEST(Fork, OfWhatAWindowDroppedOrWhatIsSwappedOutIsRefused) {
  CacheConfig config = blocks_of_four(16);
  config.windows = {4};
  config.num_swap_blocks = 8;
  Cache cache(config);
  SequenceBlocks parent, child;
  ASSERT_TRUE(cache.compute(parent, text(16), 0, 12));
  ASSERT_TRUE(cache.compute(parent, text(16), 12, 13));  // sees 9 to 12
  EXPECT_FALSE(cache.manager.fork(parent, 10, child));
  EXPECT_TRUE(child.empty());
  EXPECT_FALSE(cache.manager.fork(parent, 17, child)) << "more than there is";
  EXPECT_TRUE(cache.manager.fork(parent, 12, child));
  cache.manager.release(child);
  cache.begin_step();
  ASSERT_TRUE(cache.manager.swap_out(parent, cache.swaps));
  EXPECT_FALSE(cache.manager.fork(parent, 12, child));
  cache.check({&parent, &child});
}

// ---- swapping ----

struct Swapping : testing::Test {
  static CacheConfig config() {
    CacheConfig config = blocks_of_four(6);
    config.num_swap_blocks = 3;
    return config;
  }
  Cache cache{config()};
  SequenceBlocks a, b, c;
  Tokens tokens = text(11);
};

TEST_F(Swapping, WhatIsHeldAloneGoesToSlotsAndComesBack) {
  ASSERT_TRUE(cache.compute(a, tokens, 0, 11));
  const std::vector<BlockId> before = table(a);
  cache.begin_step();
  ASSERT_TRUE(cache.manager.swap_out(a, cache.swaps));
  EXPECT_THAT(cache.swaps, SizeIs(3));
  EXPECT_TRUE(a.swapped_out());
  EXPECT_THAT(a.table(0), testing::Each(kNoBlock));
  EXPECT_EQ(cache.manager.pool().num_used(), 0);
  EXPECT_EQ(cache.manager.num_swap_slots_used(), 3);
  EXPECT_EQ(cache.manager.blocks_to_swap_in(a), 3);
  cache.check({&a});
  std::map<SwapSlot, size_t> place;  // of the block in the text
  for (const SwapCopy& copy : cache.swaps) {
    place[copy.slot] = static_cast<size_t>(std::ranges::find(before, copy.block) - before.begin());
  }
  // All blocks are needed by others meanwhile.
  ASSERT_TRUE(cache.compute(b, text(24, 500), 0, 24));
  EXPECT_FALSE(cache.manager.swap_in(a, cache.swaps));
  EXPECT_TRUE(a.swapped_out());
  EXPECT_EQ(cache.manager.num_swap_slots_used(), 3);
  cache.manager.release(b);
  cache.begin_step();
  ASSERT_TRUE(cache.manager.swap_in(a, cache.swaps));
  ASSERT_THAT(cache.swaps, SizeIs(3));
  for (const SwapCopy& copy : cache.swaps) EXPECT_EQ(a.table(0)[place.at(copy.slot)], copy.block);
  EXPECT_FALSE(a.swapped_out());
  EXPECT_EQ(cache.manager.num_swap_slots_used(), 0);
  cache.check({&a});
}

TEST_F(Swapping, WhatThePrefixCacheStillHasNeedsNoCopyBack) {
  ASSERT_TRUE(cache.compute(a, tokens, 0, 11));
  const std::vector<BlockId> before = table(a);
  cache.begin_step();
  ASSERT_TRUE(cache.manager.swap_out(a, cache.swaps));
  cache.begin_step();
  ASSERT_TRUE(cache.manager.swap_in(a, cache.swaps));
  EXPECT_THAT(cache.swaps, SizeIs(1)) << "the last block, which is not full";
  EXPECT_EQ(a.table(0)[0], before[0]);
  EXPECT_EQ(a.table(0)[1], before[1]);
  cache.check({&a});
}

TEST_F(Swapping, WhatAnotherComputedAgainMeanwhileIsSharedWithIt) {
  ASSERT_TRUE(cache.compute(a, tokens, 0, 11));
  cache.begin_step();
  ASSERT_TRUE(cache.manager.swap_out(a, cache.swaps));
  ASSERT_TRUE(cache.compute(b, text(24, 500), 0, 24));  // takes all blocks; the nodes of the text stay, pinned
  cache.manager.release(b);
  ASSERT_TRUE(cache.compute(c, tokens, 0, 11));
  cache.begin_step();
  ASSERT_TRUE(cache.manager.swap_in(a, cache.swaps));
  EXPECT_THAT(cache.swaps, SizeIs(1));
  EXPECT_EQ(a.table(0)[0], c.table(0)[0]);
  EXPECT_EQ(a.table(0)[1], c.table(0)[1]);
  EXPECT_NE(a.table(0)[2], c.table(0)[2]);
  cache.check({&a, &c});
}

TEST_F(Swapping, WhatCameBackIsFoundByOthers) {
  ASSERT_TRUE(cache.compute(a, tokens, 0, 11));
  cache.begin_step();
  ASSERT_TRUE(cache.manager.swap_out(a, cache.swaps));
  ASSERT_TRUE(cache.compute(b, text(24, 500), 0, 24));
  cache.manager.release(b);
  cache.begin_step();
  ASSERT_TRUE(cache.manager.swap_in(a, cache.swaps));
  EXPECT_EQ(cache.manager.find_prefix({}, tokens, c), 8);
  EXPECT_EQ(c.table(0)[1], a.table(0)[1]);
  cache.check({&a, &c});
}

TEST_F(Swapping, WhatOthersHoldTooStays) {
  ASSERT_TRUE(cache.compute(a, tokens, 0, 11));
  ASSERT_EQ(cache.manager.find_prefix({}, tokens, b), 8);
  cache.begin_step();
  ASSERT_TRUE(cache.manager.swap_out(a, cache.swaps));
  EXPECT_THAT(cache.swaps, SizeIs(1));
  EXPECT_EQ(cache.manager.blocks_to_swap_in(a), 1);
  EXPECT_EQ(a.table(0)[0], b.table(0)[0]);
  cache.check({&a, &b});
}

TEST_F(Swapping, WithTooFewSlotsNothingChanges) {
  ASSERT_TRUE(cache.compute(a, text(16), 0, 16));
  cache.begin_step();
  EXPECT_FALSE(cache.manager.swap_out(a, cache.swaps));
  EXPECT_THAT(cache.swaps, IsEmpty());
  EXPECT_FALSE(a.swapped_out());
  EXPECT_EQ(cache.manager.num_swap_slots_used(), 0);
  EXPECT_EQ(cache.manager.pool().num_used(), 4);
  cache.check({&a});
}

TEST_F(Swapping, SlotsThatAStepReadsAreFreeFromTheNextOn) {
  ASSERT_TRUE(cache.compute(a, tokens, 0, 11));
  ASSERT_TRUE(cache.plan(b, text(11, 500), 0, 11));
  cache.begin_step();
  ASSERT_TRUE(cache.manager.swap_out(a, cache.swaps));
  cache.begin_step();
  ASSERT_TRUE(cache.manager.swap_in(a, cache.swaps));
  EXPECT_FALSE(cache.manager.swap_out(b, cache.swaps)) << "copies out come before copies in";
  cache.begin_step();
  EXPECT_TRUE(cache.manager.swap_out(b, cache.swaps));
  cache.check({&a, &b});
}

TEST_F(Swapping, ASlotWhoseCopyIsInNoPlanYetIsNotGivenToAnother) {
  ASSERT_TRUE(cache.compute(a, tokens, 0, 11));
  ASSERT_TRUE(cache.plan(b, text(11, 500), 0, 11));
  cache.begin_step();
  ASSERT_TRUE(cache.manager.swap_out(a, cache.swaps));
  cache.manager.release(a);
  cache.begin_step(/*free_slots=*/false);
  EXPECT_FALSE(cache.manager.swap_out(b, cache.swaps));
  cache.begin_step();
  EXPECT_TRUE(cache.manager.swap_out(b, cache.swaps));
  cache.check({&a, &b});
}

TEST_F(Swapping, ReleasedWhileSwappedOutItGivesItsSlotsBack) {
  ASSERT_TRUE(cache.compute(a, tokens, 0, 11));
  cache.begin_step();
  ASSERT_TRUE(cache.manager.swap_out(a, cache.swaps));
  cache.manager.release(a);
  EXPECT_TRUE(a.empty());
  EXPECT_FALSE(a.swapped_out());
  EXPECT_EQ(cache.manager.num_swap_slots_used(), 0);
  cache.check({&a});
}

// ---- growing ----

TEST(Prepare, AllOrNothing) {
  Cache cache(blocks_of_four(3));
  SequenceBlocks a;
  ASSERT_TRUE(cache.compute(a, text(20), 0, 8));
  EXPECT_EQ(cache.manager.blocks_missing(a, 8, 20), 3);
  EXPECT_FALSE(cache.compute(a, text(20), 8, 20));
  EXPECT_EQ(a.num_blocks(), 2);
  EXPECT_EQ(cache.manager.pool().num_free(), 1);
  EXPECT_TRUE(cache.compute(a, text(20), 8, 12));
  cache.check({&a});
}

TEST(Prepare, TakesABlockExactlyWhenATokenNeedsItAndAsManyAsBlocksMissingSaid) {
  Cache cache(blocks_of_four(8));
  SequenceBlocks a;
  for (int32_t position = 0; position < 12; ++position) {
    cache.begin_step();
    const int32_t used = cache.manager.pool().num_used();
    const int64_t missing = cache.manager.blocks_missing(a, position, position + 1);
    EXPECT_EQ(missing, position % 4 == 0 ? 1 : 0);
    ASSERT_TRUE(cache.plan(a, text(12), position, position + 1));
    EXPECT_EQ(cache.manager.pool().num_used(), used + missing);
  }
}

TEST(Reset, ForgetsContentsButTakesNothingFromWhoHoldsThem) {
  Cache cache(blocks_of_four(8));
  SequenceBlocks a, b, c;
  ASSERT_TRUE(cache.compute(a, text(9), 0, 9));
  ASSERT_TRUE(cache.compute(c, text(9, 500), 0, 9));
  cache.manager.release(c);
  EXPECT_EQ(cache.manager.pool().num_cached(), 2);
  const std::vector<BlockId> before = table(a);
  cache.manager.reset_prefix_cache();
  EXPECT_EQ(cache.manager.pool().num_cached(), 0);
  EXPECT_EQ(table(a), before);
  EXPECT_EQ(cache.manager.find_prefix({}, text(9), b), 0);
  cache.manager.release(b);
  // Who goes on publishes what it computes from here on; it cannot be found without its beginning.
  ASSERT_TRUE(cache.compute(a, text(13), 9, 13));
  EXPECT_EQ(cache.manager.find_prefix({}, text(13), b), 0);
  cache.check({&a, &b});
}

TEST(Release, AnEmptySequenceHasNothingToGiveBack) {
  Cache cache(blocks_of_four(4));
  SequenceBlocks a;
  cache.manager.release(a);
  EXPECT_TRUE(a.empty());
  cache.check({&a});
}

}  // namespace
}  // namespace quire::kv
