// What becomes of hidden states that come in runs.
#include "runner/pooling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace quire::runner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kSize = 2;
const std::vector<float> kStates = {1, -2, 3, 0.1f, 5, 1e-3f, -7, 12};  // of four positions

using Types = std::vector<PoolingType>;
constexpr PoolingType kAllTypes[] = {
    PoolingType::kCls,         PoolingType::kMax, PoolingType::kMean, PoolingType::kLast, PoolingType::kMeanSqrtLength,
    PoolingType::kWeightedMean};

std::vector<float> pooled(const Types& types, const std::vector<int64_t>& ends) {
  HiddenPool pool;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    pool.take(types, kStates.data() + begin * kSize, begin, end - begin, {.length = 4}, kSize);
    begin = end;
  }
  EXPECT_TRUE(pool.is_complete(4));
  auto vector = pool.vector();
  EXPECT_TRUE(vector.ok());
  return *vector;
}

TEST(HiddenPool, TakesTheFirstTheLastOrTheMeanOfAll) {
  EXPECT_THAT(pooled({PoolingType::kCls}, {4}), ElementsAre(1, -2));
  EXPECT_THAT(pooled({PoolingType::kLast}, {4}), ElementsAre(-7, 12));
  EXPECT_THAT(pooled({PoolingType::kMean}, {4}),
              ElementsAre(0.5f, static_cast<float>((-2 + 0.1f + static_cast<double>(1e-3f) + 12) / 4)));
}

TEST(HiddenPool, TakesOtherMeansAndTheLargest) {
  const double second = -2 + static_cast<double>(0.1f) + static_cast<double>(1e-3f) + 12;
  EXPECT_THAT(pooled({PoolingType::kMax}, {4}), ElementsAre(5, 12));
  EXPECT_THAT(pooled({PoolingType::kMeanSqrtLength}, {4}), ElementsAre(1, static_cast<float>(second / 2)));
  const double later = -2 + 2 * static_cast<double>(0.1f) + 3 * static_cast<double>(1e-3f) + 4 * 12;
  EXPECT_THAT(pooled({PoolingType::kWeightedMean}, {4}),
              ElementsAre((1.0f + 6 + 15 - 28) / 10, static_cast<float>(later / 10)));
}

TEST(HiddenPool, SeveralStandBehindEachOther) {
  EXPECT_THAT(pooled({PoolingType::kLast, PoolingType::kMax, PoolingType::kCls}, {1, 4}),
              ElementsAre(-7, 12, 5, 12, 1, -2));
}

TEST(HiddenPool, NoBitDependsOnHowThePromptIsCut) {
  for (const PoolingType type : kAllTypes) {
    const std::vector<float> whole = pooled({type}, {4});
    EXPECT_EQ(pooled({type}, {1, 2, 3, 4}), whole);
    EXPECT_EQ(pooled({type}, {3, 4}), whole);
  }
}

TEST(HiddenPool, ASequenceThatIsComputedAgainIsCountedOnce) {
  HiddenPool pool;
  pool.take(Types{PoolingType::kMean}, kStates.data(), 0, 3, {.length = 4}, kSize);
  EXPECT_FALSE(pool.is_complete(4));
  pool.take(Types{PoolingType::kMean}, kStates.data(), 0, 2, {.length = 4},
            kSize);  // preempted, then from the beginning
  pool.take(Types{PoolingType::kMean}, kStates.data() + 2 * kSize, 2, 2, {.length = 4}, kSize);
  EXPECT_EQ(*pool.vector(), pooled({PoolingType::kMean}, {4}));
}

TEST(HiddenPool, APromptThatIsLeftOutCountsOnlyForWhereItsTextStands) {
  const auto pooled_from = [](PoolingType type, int64_t from) {
    HiddenPool pool;
    pool.take(Types{type}, kStates.data(), 0, 3, {.from = from, .length = 4}, kSize);
    pool.take(Types{type}, kStates.data() + 3 * kSize, 3, 1, {.from = from, .length = 4}, kSize);
    return *pool.vector();
  };
  EXPECT_THAT(pooled_from(PoolingType::kMean, 2), ElementsAre(-1, static_cast<float>((1e-3 + 12) / 2)));
  EXPECT_THAT(pooled_from(PoolingType::kCls, 1), ElementsAre(3, 0.1f));
  EXPECT_THAT(pooled_from(PoolingType::kMax, 3), ElementsAre(-7, 12));
  EXPECT_THAT(pooled_from(PoolingType::kWeightedMean, 2)[0], (3 * 5 - 4 * 7) / 7.0f);
  // Nothing but the prompt: its last token.
  EXPECT_THAT(pooled_from(PoolingType::kMean, 9), ElementsAre(-7, 12));
}

TEST(HiddenPool, TheLastTokenIsEnoughWhereTheCacheHasTheOthers) {
  HiddenPool pool;
  pool.take(Types{PoolingType::kLast}, kStates.data() + 3 * kSize, 3, 1, {.length = 4}, kSize);
  EXPECT_THAT(*pool.vector(), ElementsAre(-7, 12));
}

TEST(HiddenPool, WhatIsNotFiniteIsAnError) {
  const std::vector<float> states = {1, std::numeric_limits<float>::quiet_NaN(), 2, 3};
  for (const PoolingType type : {PoolingType::kMean, PoolingType::kMax}) {
    HiddenPool pool;
    pool.take(Types{type}, states.data(), 0, 2, {.length = 2}, kSize);
    EXPECT_THAT(pool.vector().status().message(), HasSubstr("not finite"));
  }
}

}  // namespace
}  // namespace quire::runner
