#include "kv/prefix_cache.h"

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/hashing.h"

namespace quire::kv {
namespace {

using Tokens = std::vector<TokenId>;

// Every text collides with every other.
uint64_t same_for_all(const void*, size_t, uint64_t) {
  return 42;
}

// Collides often, but not always.
uint64_t three_values(const void* data, size_t size, uint64_t seed) {
  return hash_bytes(data, size, seed) % 3;
}

// Both hash functions must give the same answers: only the time they take may differ.
struct PrefixCacheTest : testing::TestWithParam<PrefixCache::HashFunction> {
  PrefixCache cache{16, 2, 1, 7, GetParam()};
};

std::string name_of(const testing::TestParamInfo<PrefixCache::HashFunction>& hash) {
  if (hash.param == &hash_bytes) return "Good";
  return hash.param == &same_for_all ? "AllCollide" : "ManyCollide";
}

INSTANTIATE_TEST_SUITE_P(Hashes, PrefixCacheTest, testing::Values(&hash_bytes, &same_for_all, &three_values), name_of);

TEST_P(PrefixCacheTest, TokensDecideWhichChildIsFound) {
  const NodeId root = cache.pin_root({});
  const NodeId a = cache.add_child(root, Tokens{1, 2});
  cache.attach(a, 0, 3, 5);
  const NodeId b = cache.add_child(root, Tokens{1, 3});
  cache.attach(b, 0, 4, 6);
  EXPECT_NE(a, b);
  EXPECT_EQ(cache.find_child(root, Tokens{1, 2}), a);
  EXPECT_EQ(cache.find_child(root, Tokens{1, 3}), b);
  EXPECT_EQ(cache.find_child(root, Tokens{2, 1}), kNoNode);
  EXPECT_EQ(cache.add_child(root, Tokens{1, 2}), a) << "a text has one node";
  EXPECT_EQ(cache.block(a, 0), 3);
  EXPECT_EQ(cache.step_written(b), 6u);
  EXPECT_TRUE(cache.attached(3));
  EXPECT_FALSE(cache.attached(5));
  cache.check_invariants();
}

TEST_P(PrefixCacheTest, TheParentDecidesEvenIfTokensAreTheSame) {
  const NodeId root = cache.pin_root({});
  const NodeId a = cache.add_child(root, Tokens{1, 2});
  cache.attach(a, 0, 0, 0);
  const NodeId b = cache.add_child(root, Tokens{3, 4});
  cache.attach(b, 0, 1, 0);
  const NodeId below_a = cache.add_child(a, Tokens{5, 6});
  cache.attach(below_a, 0, 2, 0);
  EXPECT_EQ(cache.find_child(b, Tokens{5, 6}), kNoNode);
  const NodeId below_b = cache.add_child(b, Tokens{5, 6});
  cache.attach(below_b, 0, 3, 0);
  EXPECT_NE(below_a, below_b);
  EXPECT_EQ(cache.parent(below_a), a);
  EXPECT_EQ(cache.parent(below_b), b);
  cache.check_invariants();
}

TEST_P(PrefixCacheTest, ContextsShareNothing) {
  const NodeId plain = cache.pin_root({});
  const NodeId salted = cache.pin_root({.salt = "s"});
  const NodeId adapted = cache.pin_root({.salt = "", .lora_id = 1});
  const NodeId both = cache.pin_root({.salt = "s", .lora_id = 1});
  const NodeId beyond_training = cache.pin_root({.salt = "s", .is_long = true});
  EXPECT_EQ(std::set({plain, salted, adapted, both, beyond_training}).size(), 5u);
  const NodeId node = cache.add_child(salted, Tokens{1, 2});
  cache.attach(node, 0, 0, 0);
  for (const NodeId other : {plain, adapted, both, beyond_training})
    EXPECT_EQ(cache.find_child(other, Tokens{1, 2}), kNoNode);
  EXPECT_EQ(cache.pin_root({.salt = "s"}), salted);
  cache.check_invariants();
}

TEST_P(PrefixCacheTest, ANodeOutlivesItsBlocksWhileItIsPinnedOrHasChildren) {
  const NodeId root = cache.pin_root({});
  const NodeId middle = cache.add_child(root, Tokens{1, 2});
  cache.attach(middle, 0, 0, 0);
  const NodeId tail = cache.add_child(middle, Tokens{3, 4});
  cache.attach(tail, 0, 1, 0);
  cache.detach(0);
  EXPECT_EQ(cache.find_child(root, Tokens{1, 2}), middle);
  EXPECT_EQ(cache.block(middle, 0), kNoBlock);
  cache.attach(middle, 0, 5, 9);  // computed again: the tail is found behind it
  EXPECT_EQ(cache.find_child(middle, Tokens{3, 4}), tail);
  EXPECT_EQ(cache.block(tail, 0), 1);
  cache.pin(tail);
  cache.detach(1);
  EXPECT_EQ(cache.find_child(middle, Tokens{3, 4}), tail);
  cache.unpin(tail);
  EXPECT_EQ(cache.find_child(middle, Tokens{3, 4}), kNoNode);
  cache.check_invariants();
}

TEST_P(PrefixCacheTest, WhenNothingHoldsABranchThenItsNodesAreForgottenUpToTheRoot) {
  const NodeId root = cache.pin_root({.salt = "x"});
  NodeId node = root;
  for (BlockId i = 0; i < 5; ++i) {
    node = cache.add_child(node, Tokens{i, i});
    cache.attach(node, 0, i, 0);
  }
  cache.unpin(root);
  EXPECT_EQ(cache.num_nodes(), 6);
  for (BlockId i = 0; i < 4; ++i) cache.detach(i);
  EXPECT_EQ(cache.num_nodes(), 6) << "the last still has a block";
  cache.detach(4);
  EXPECT_EQ(cache.num_nodes(), 0);
  cache.detach(4);  // nothing attached any more
  cache.check_invariants();
  EXPECT_EQ(cache.find_child(cache.pin_root({.salt = "x"}), Tokens{0, 0}), kNoNode);
}

TEST(PrefixCacheGroups, EachGroupOfLayersHasABlockOfItsOwn) {
  PrefixCache cache(8, 2, 3, 1, &hash_bytes);
  const NodeId root = cache.pin_root({});
  const NodeId node = cache.add_child(root, Tokens{1, 2});
  cache.attach(node, 2, 4, 1);
  cache.attach(node, 0, 6, 1);
  EXPECT_EQ(cache.block(node, 0), 6);
  EXPECT_EQ(cache.block(node, 1), kNoBlock);
  EXPECT_EQ(cache.block(node, 2), 4);
  cache.detach(6);
  EXPECT_EQ(cache.find_child(root, Tokens{1, 2}), node);
  cache.detach(4);
  EXPECT_EQ(cache.find_child(root, Tokens{1, 2}), kNoNode);
  cache.unpin(root);
  EXPECT_EQ(cache.num_nodes(), 0);
}

TEST(PrefixCacheDeath, ANodeTakesOneBlockAGroupAndABlockOneNode) {
  PrefixCache cache(8, 2, 1, 1, &hash_bytes);
  const NodeId root = cache.pin_root({});
  const NodeId a = cache.add_child(root, Tokens{1, 2});
  cache.attach(a, 0, 4, 1);
  EXPECT_DEATH(cache.attach(a, 0, 5, 1), "attached");
  const NodeId b = cache.add_child(root, Tokens{3, 4});
  EXPECT_DEATH(cache.attach(b, 0, 4, 1), "attached");
}

// Texts over two tokens, a map from whole texts as the naive account.
TEST_P(PrefixCacheTest, UnderRandomOperationsItAgreesWithANaiveMap) {
  const unsigned seed = 77;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::map<std::pair<std::string, Tokens>, BlockId> attached;  // (salt, whole text) -> block
  std::map<BlockId, std::pair<std::string, Tokens>> text_of;
  for (int step = 0; step < 20000; ++step) {
    const auto block = static_cast<BlockId>(random() % 16);
    const std::string salt = random() % 2 == 0 ? "" : "s";
    if (random() % 2 == 0) {
      cache.detach(block);
      if (const auto place = text_of.find(block); place != text_of.end()) {
        attached.erase(place->second);
        text_of.erase(place);
      }
    } else {
      // A random walk down; the block goes to the last node if both are free.
      const NodeId root = cache.pin_root({.salt = salt});
      NodeId node = root;
      Tokens text;
      for (auto depth = 1 + random() % 3; depth > 0; --depth) {
        const Tokens next = {static_cast<TokenId>(random() % 2), static_cast<TokenId>(random() % 2)};
        text.insert(text.end(), next.begin(), next.end());
        const NodeId child = cache.add_child(node, next);
        cache.pin(child);
        cache.unpin(node);
        node = child;
        const auto known = attached.find({salt, text});
        ASSERT_EQ(cache.block(node, 0), known == attached.end() ? kNoBlock : known->second);
      }
      if (cache.block(node, 0) == kNoBlock && !cache.attached(block)) {
        cache.attach(node, 0, block, static_cast<uint64_t>(step));
        attached[{salt, text}] = block;
        text_of[block] = {salt, text};
      }
      cache.unpin(node);
    }
    if (step % 10 == 0) cache.check_invariants();
  }
  for (BlockId block = 0; block < 16; ++block) cache.detach(block);
  EXPECT_EQ(cache.num_nodes(), 0);
}

}  // namespace
}  // namespace quire::kv
