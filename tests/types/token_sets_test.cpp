#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "types/dry_breakers.h"
#include "types/token_set.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(TokenSet, HoldsEachIdOnceAndInOrder) {
  const TokenSet set = {7, 2, 7, -3, 2};
  EXPECT_THAT(set.ids(), ElementsAre(-3, 2, 7));
  EXPECT_TRUE(set.contains(2) && set.contains(-3) && !set.contains(3));
  EXPECT_EQ(set, TokenSet({2, 7, -3}));
  EXPECT_THAT(TokenSet().ids(), IsEmpty());
  EXPECT_TRUE(TokenSet(std::vector<TokenId>()).empty());
  EXPECT_EQ(TokenSet().heap_bytes(), 0);
}

TEST(TokenSet, ACopyIsTheSameMemory) {
  const TokenSet set = {1, 2, 3};
  const TokenSet copy = set;  // NOLINT(performance-unnecessary-copy-initialization): what is tested
  EXPECT_EQ(copy.ids().data(), set.ids().data());
}

TEST(DryBreakers, TheLongestThatStandsAtAPlaceCounts) {
  const DryBreakers breakers({{5}, {5, 6, 7}, {5, 6}, {64}, {8, 9}, {}, {-1, 3}, {-2}});
  EXPECT_TRUE(breakers.is_breaker(5) && breakers.is_breaker(64));
  for (const TokenId id : {-2, -1, 0, 6, 8, 63, 65, 1 << 30}) EXPECT_FALSE(breakers.is_breaker(id)) << id;
  const auto length_at = [&](std::vector<TokenId> text) { return breakers.length_at(text); };
  EXPECT_EQ(length_at({5, 6, 7, 8}), 3u);
  EXPECT_EQ(length_at({5, 6, 8}), 2u);
  EXPECT_EQ(length_at({5, 7}), 1u);
  EXPECT_EQ(length_at({8, 9}), 2u);
  EXPECT_EQ(length_at({8}), 0u);
  EXPECT_EQ(length_at({6, 7}), 0u);
  EXPECT_EQ(length_at({}), 0u);
  EXPECT_TRUE(DryBreakers().empty());
  EXPECT_FALSE(breakers.empty());
}

TEST(DryBreakers, ASetOfManyTokensIsABitForEach) {
  std::vector<std::vector<TokenId>> all;
  for (TokenId id = 0; id < 150'000; ++id) all.push_back({id});
  EXPECT_LE(DryBreakers(all).heap_bytes(), 2 * 150'000 / 8);
}

}  // namespace
}  // namespace quire
