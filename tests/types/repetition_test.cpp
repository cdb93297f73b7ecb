#include "types/repetition.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire {
namespace {

using testing::ElementsAre;
using Tokens = std::vector<TokenId>;

constexpr RepetitionDetection detection(int32_t smallest, int32_t largest, int32_t count) {
  return {.max_pattern_size = largest, .min_pattern_size = smallest, .min_count = count};
}

TEST(Repetition, APatternAtTheEndIsSeenAsSoonAsItHasComeOftenEnough) {
  const RepetitionDetection three = detection(1, 4, 3);
  EXPECT_FALSE(ends_in_repetition(Tokens{9, 1, 2, 1, 2, 1}, three));
  EXPECT_TRUE(ends_in_repetition(Tokens{9, 1, 2, 1, 2, 1, 2}, three));
  EXPECT_FALSE(ends_in_repetition(Tokens{9, 1, 2, 1, 2, 1, 2, 9}, three));
  EXPECT_TRUE(ends_in_repetition(Tokens{5, 5, 5}, three));
  EXPECT_FALSE(ends_in_repetition(Tokens{5, 5}, three));
  EXPECT_FALSE(ends_in_repetition(Tokens{}, three));
}

TEST(Repetition, OnlyPatternsOfTheAskedSizesCount) {
  const Tokens triple = {1, 2, 3, 1, 2, 3};
  EXPECT_TRUE(ends_in_repetition(triple, detection(3, 3, 2)));
  EXPECT_FALSE(ends_in_repetition(triple, detection(0, 2, 2)));
  EXPECT_FALSE(ends_in_repetition(triple, detection(4, 9, 2)));
  // One token again and again is a pattern of any size.
  EXPECT_TRUE(ends_in_repetition(Tokens(12, 7), detection(4, 4, 3)));
  EXPECT_FALSE(ends_in_repetition(Tokens(11, 7), detection(4, 4, 3)));
}

TEST(Repetition, ASizeOfZeroIsOff) {
  EXPECT_FALSE(ends_in_repetition(Tokens(100, 1), detection(0, 0, 0)));
  EXPECT_FALSE(ends_in_repetition(Tokens(100, 1), detection(0, 0, 2)));
}

bool naive(const Tokens& tokens, const RepetitionDetection& d) {
  for (size_t size = static_cast<size_t>(std::max(d.min_pattern_size, 1));
       size <= static_cast<size_t>(d.max_pattern_size); ++size) {
    const size_t length = size * static_cast<size_t>(d.min_count);
    if (length > tokens.size()) continue;
    const Tokens tail(tokens.end() - static_cast<std::ptrdiff_t>(length), tokens.end());
    bool repeats = true;
    for (size_t i = 0; i < length; ++i) repeats = repeats && tail[i] == tail[i % size];
    if (repeats) return true;
  }
  return false;
}

TEST(Repetition, AgreesWithComparingEveryCopy) {
  const unsigned seed = 5;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto whole = [&](int lowest, int highest) {
    return std::uniform_int_distribution<int>(lowest, highest)(random);
  };
  int found = 0;
  for (int round = 0; round < 40000; ++round) {
    Tokens tokens;
    const int letters = whole(1, 3);
    for (int i = whole(0, 40); i > 0; --i) tokens.push_back(whole(1, letters));
    // Often with copies of the last few at the end, and often with one of those spoilt.
    if (!tokens.empty() && whole(0, 1) == 0) {
      const size_t size = static_cast<size_t>(whole(1, static_cast<int>(tokens.size())));
      for (int copy = whole(1, 4); copy > 0; --copy) {
        for (size_t i = 0; i < size; ++i) tokens.push_back(tokens[tokens.size() - size]);
      }
      if (whole(0, 2) == 0) tokens[static_cast<size_t>(whole(0, static_cast<int>(tokens.size()) - 1))] = 9;
    }
    const int largest = whole(1, 30);
    const RepetitionDetection d = detection(whole(0, largest), largest, whole(2, 5));
    const bool expected = naive(tokens, d);
    found += expected ? 1 : 0;
    ASSERT_EQ(ends_in_repetition(tokens, d), expected) << "round " << round << ": " << testing::PrintToString(tokens);
  }
  EXPECT_GT(found, 5000);
  EXPECT_LT(found, 35000);
}

TEST(Repetition, TextThatNearlyRepeatsAtEverySizeAgreesToo) {
  // One odd token far back keeps thousands of sizes from being patterns, each after a long comparison.
  Tokens tokens(6000, 1);
  tokens[4400] = 2;
  EXPECT_FALSE(ends_in_repetition(tokens, detection(801, 2000, 2)));
  EXPECT_TRUE(ends_in_repetition(tokens, detection(799, 2000, 2)));
  tokens.assign(6000, 1);
  for (size_t i = 0; i < tokens.size(); i += 1500) tokens[i] = 2;
  EXPECT_TRUE(ends_in_repetition(tokens, detection(1000, 2000, 3)));
  EXPECT_FALSE(ends_in_repetition(tokens, detection(1000, 1499, 3)));
}

TEST(MatchingTails, CountTheTokensThatEqualThoseBeforeThem) {
  std::vector<size_t> lengths;
  //                      a  b  c  c  b  c  y  a  b  c
  matching_tails(Tokens{1, 2, 3, 3, 2, 3, 9, 1, 2, 3}, lengths);
  EXPECT_THAT(lengths, ElementsAre(0, 0, 0, 0, 2, 0, 1, 3, 0, 0));
  matching_tails(Tokens{4, 4, 4, 4}, lengths);
  EXPECT_THAT(lengths, ElementsAre(0, 3, 2, 1));
  matching_tails(Tokens{}, lengths);
  EXPECT_TRUE(lengths.empty());
}

}  // namespace
}  // namespace quire
