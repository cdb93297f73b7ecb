// Blocks of the prefix cache to other instances and from them, as ids.
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv/cache_manager.h"

namespace quire::kv {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

std::vector<TokenId> text_from(TokenId first, int count = 16) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// An instance whose steps are done when they are planned.
struct Instance {
  explicit Instance(int32_t num_slots, std::vector<int32_t> windows = {0})
      : manager({.num_blocks = 32, .block_size = 4, .windows = std::move(windows), .num_offload_slots = num_slots}) {}

  void compute(const std::vector<TokenId>& tokens, const CacheContext& context = {}) {
    manager.begin_step(++step, true);
    SequenceBlocks blocks;
    ASSERT_TRUE(manager.prepare(blocks, 0, static_cast<int32_t>(tokens.size()), copies));
    manager.publish(context, tokens, static_cast<int32_t>(tokens.size()), blocks);
    std::vector<OffloadCopy> stores;
    manager.tiers().add_stores(step, stores);
    manager.tiers().committed(step);
    manager.release(blocks);
  }
  // Carries out orders: exported bytes tell the order.
  void report() {
    OffloadOrders orders = manager.tiers().take_orders();
    OffloadReports reports;
    for (const OffloadExport& order : orders.exports) reports.exported.push_back({order.id, std::to_string(order.id)});
    for (const OffloadImport& order : orders.imports) reports.imported.push_back(order.id);
    manager.tiers().report(reports);
    check();
  }
  int32_t found(const std::vector<TokenId>& tokens, const CacheContext& context = {}) {
    manager.begin_step(++step, true);
    PrefixMatch match = manager.look_up(context, tokens);
    const int32_t count = match.num_computed();
    manager.forget(match);
    return count;
  }
  void check() const {
    manager.check_invariants(std::vector<int32_t>(static_cast<size_t>(manager.pool().num_blocks()), 0));
  }

  CacheManager manager;
  uint64_t step = 0;
  std::vector<BlockCopy> copies;
};

KvPrefix with_bytes(KvPrefix prefix) {
  for (const KvBlockPlace& place : prefix.places) prefix.blocks.push_back("block " + std::to_string(place.index));
  return prefix;
}

TEST(PrefixTransfer, WhatOneComputedIsFoundByTheOther) {
  Instance one(16);
  Instance two(16);
  one.compute(text_from(100));
  KvPrefix prefix;
  EXPECT_THAT(one.manager.send_prefix({}, text_from(100), prefix), SizeIs(4));
  EXPECT_EQ(prefix.tokens, text_from(100));
  one.report();
  EXPECT_THAT(two.manager.receive_prefix({}, with_bytes(prefix)), SizeIs(4));
  EXPECT_EQ(two.found(text_from(100, 18)), 0) << "before they are there";
  two.report();
  EXPECT_EQ(two.found(text_from(100, 18)), 16);
  EXPECT_EQ(two.found(text_from(101, 18)), 0);
  EXPECT_EQ(two.found(text_from(100, 18), {.salt = "another"}), 0);
  EXPECT_THAT(two.manager.receive_prefix({}, with_bytes(prefix)), IsEmpty()) << "they are there";
}

TEST(PrefixTransfer, OnlyTheBeginningThatIsThereIsSentAndOfItsOwnSalt) {
  Instance one(16);
  one.compute(text_from(100, 10), {.salt = "mine"});
  KvPrefix prefix;
  EXPECT_THAT(one.manager.send_prefix({.salt = "mine"}, text_from(100), prefix), SizeIs(2));
  EXPECT_EQ(prefix.tokens, text_from(100, 8));
  KvPrefix other;
  EXPECT_THAT(one.manager.send_prefix({}, text_from(100), other), IsEmpty());
  EXPECT_THAT(other.tokens, IsEmpty());
  one.report();
}

TEST(PrefixTransfer, SlotsThatAreSentAreNobodyElsesUntilItIsDone) {
  Instance one(4);
  one.compute(text_from(100));
  KvPrefix prefix;
  ASSERT_THAT(one.manager.send_prefix({}, text_from(100), prefix), SizeIs(4));
  one.compute(text_from(200));
  EXPECT_EQ(one.manager.tiers().statistics().stored_blocks, 4) << "no slot for any of the others";
  one.check();
  one.report();
  one.compute(text_from(300));
  EXPECT_EQ(one.manager.tiers().statistics().stored_blocks, 8);
  one.check();
}

TEST(PrefixTransfer, ResettingWhileBlocksMoveLosesThemAndNothingElse) {
  Instance one(8);
  one.compute(text_from(100));
  KvPrefix prefix;
  ASSERT_THAT(one.manager.send_prefix({}, text_from(100), prefix), SizeIs(4));
  Instance two(8);
  ASSERT_THAT(two.manager.receive_prefix({}, with_bytes(prefix)), SizeIs(4));
  one.manager.reset_prefix_cache();
  two.manager.reset_prefix_cache();
  one.report();
  two.report();
  EXPECT_EQ(one.found(text_from(100, 18)), 0);
  EXPECT_EQ(two.found(text_from(100, 18)), 0);
  EXPECT_EQ(one.manager.tiers().statistics().slots_used, 0);
  EXPECT_EQ(two.manager.tiers().statistics().slots_used, 0);
}

TEST(PrefixTransfer, HalfOfHostMemoryIsTakenAtMost) {
  Instance one(16);
  one.compute(text_from(100));
  KvPrefix prefix;
  ASSERT_THAT(one.manager.send_prefix({}, text_from(100), prefix), SizeIs(4));
  Instance two(4);
  EXPECT_THAT(two.manager.receive_prefix({}, with_bytes(prefix)), SizeIs(2));
  two.report();
  EXPECT_EQ(two.found(text_from(100, 18)), 8);
}

// A group with a window of 5 keeps the blocks that going on from the end reads.
TEST(PrefixTransfer, BehindAWindowNothingIsSent) {
  Instance one(32, {0, 5});
  one.compute(text_from(100, 20));
  KvPrefix prefix;
  const auto ids = one.manager.send_prefix({}, text_from(100, 20), prefix);
  EXPECT_THAT(ids, SizeIs(prefix.places.size()));
  EXPECT_LT(ids.size(), 10u);
  one.report();
  Instance two(32, {0, 5});
  EXPECT_THAT(two.manager.receive_prefix({}, with_bytes(prefix)), SizeIs(ids.size()));
  two.report();
  EXPECT_EQ(two.found(text_from(100, 22)), 20);
}

}  // namespace
}  // namespace quire::kv
