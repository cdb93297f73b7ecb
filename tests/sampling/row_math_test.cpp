#include "sampling/row_math.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sampling/logprobs.h"

namespace quire::sampling {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_row(std::mt19937& random, size_t size, bool with_ties) {
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> row(size);
  for (float& x : row) {
    x = normal(random);
    if (with_ties) x = std::round(x);
    if (random() % 50 == 0) x = -kInfinite;
  }
  return row;
}

std::vector<Candidate> sorted_above_minus_infinity(const std::vector<float>& row) {
  std::vector<Candidate> all;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] > -kInfinite) all.push_back({row[i], static_cast<TokenId>(i)});
  }
  std::sort(all.begin(), all.end(), more_likely);
  return all;
}

void expect_same(const std::vector<Candidate>& found, const std::vector<Candidate>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].id, expected[i].id) << "at " << i;
    ASSERT_EQ(found[i].value, expected[i].value) << "at " << i;
  }
}

TEST(RowMath, AgreesWithTheObviousWayOnRowsOfEveryLength) {
  const unsigned seed = 41;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (size_t size = 1; size < 400; size += 1 + size / 20) {
    for (bool with_ties : {false, true}) {
      SCOPED_TRACE(testing::Message() << "size " << size << ", ties " << with_ties);
      std::vector<float> row = random_row(random, size, with_ties);
      row[random() % size] = 1.5f;
      const auto largest = std::max_element(row.begin(), row.end());
      EXPECT_EQ(row_maximum(row).value, *largest);
      EXPECT_TRUE(row_maximum(row).finite);
      EXPECT_EQ(first_equal(row, *largest), static_cast<size_t>(largest - row.begin()));
      EXPECT_EQ(count_greater(row, 1.5f),
                static_cast<size_t>(std::count_if(row.begin(), row.end(), [](float x) { return x > 1.5f; })));
      const std::vector<Candidate> all = sorted_above_minus_infinity(row);
      for (size_t count : {size_t{0}, size_t{1}, size_t{5}, size / 2, size, size + 7}) {
        std::vector<Candidate> found;
        select_largest(row, count, found);
        expect_same(found, {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(count, all.size()))});
      }
    }
  }
}

TEST(RowMath, SelectionSurvivesTheWorstOrders) {
  std::vector<float> rising(5000), falling(5000), equal(5000, 2.0f);
  for (size_t i = 0; i < rising.size(); ++i) {
    rising[i] = static_cast<float>(i);
    falling[i] = -static_cast<float>(i);
  }
  for (const std::vector<float>& row : {rising, falling, equal}) {
    const std::vector<Candidate> all = sorted_above_minus_infinity(row);
    std::vector<Candidate> found;
    select_largest(row, 20, found);
    expect_same(found, {all.begin(), all.begin() + 20});
  }
}

TEST(RowMath, FindsWhatIsNotFiniteWhereverItIs) {
  for (size_t size : {size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{100}}) {
    for (size_t place = 0; place < size; ++place) {
      for (float bad : {kNaN, -kNaN, kInfinite}) {
        std::vector<float> row(size, 0.5f);
        row[place] = bad;
        EXPECT_FALSE(row_maximum(row).finite) << size << " " << place;
      }
    }
    EXPECT_FALSE(row_maximum(std::vector<float>(size, -kInfinite)).finite);
    EXPECT_TRUE(row_maximum(std::vector<float>(size, -std::numeric_limits<float>::max())).finite);
  }
}

TEST(RowMath, TheExponentialIsAccurateToTheLastPlaces) {
  EXPECT_EQ(exp_nonpositive(0.0f), 1.0f);
  EXPECT_EQ(exp_nonpositive(-87.5f), 0.0f);
  EXPECT_EQ(exp_nonpositive(-kInfinite), 0.0f);
  double worst = 0.0;
  for (float x = 0.0f; x > -87.0f; x -= 0.00137f) {
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(exp_nonpositive(x)) - exact) / exact);
  }
  EXPECT_LT(worst, 2.0e-7);
}

TEST(RowMath, WeightsAndTheirSumsAgreeWithDoubles) {
  std::mt19937 random(17);
  for (size_t size : {size_t{1}, size_t{511}, size_t{512}, size_t{513}, size_t{3000}}) {
    std::vector<float> row = random_row(random, size, false);
    row[0] = 1.0f;
    const float maximum = *std::max_element(row.begin(), row.end());
    double exact = 0.0, exact_at_half = 0.0;
    std::vector<double> expected;
    for (float x : row) {
      exact += std::exp(static_cast<double>(x) - maximum);
      const double weight = std::exp((static_cast<double>(x) - maximum) * 2.0);
      expected.push_back(weight < 0.01 ? 0.0 : weight);
      exact_at_half += expected.back();
    }
    EXPECT_NEAR(sum_exp(row, maximum), exact, exact * 1e-6);
    std::vector<double> block_sums;
    const double total = replace_by_weights(row, maximum, 2.0f, 0.01f, block_sums);
    EXPECT_NEAR(total, exact_at_half, exact_at_half * 1e-6);
    ASSERT_EQ(block_sums.size(), (size + kWeightBlock - 1) / kWeightBlock);
    for (size_t i = 0; i < size; ++i) EXPECT_NEAR(row[i], expected[i], 1e-6);
  }
}

// ---- logprobs ----

TEST(PositionLogprobs, OfAHandMadeRow) {
  // Probabilities 1/2, 1/4, 1/8, 1/8.
  const std::vector<float> logits = {std::log(4.0f), std::log(8.0f), std::log(2.0f), std::log(2.0f)};
  const Result<PositionLogprobs> result = position_logprobs(logits, 3, 4);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->chosen.id, 3);
  EXPECT_NEAR(result->chosen.logprob, std::log(0.125), 1e-6);
  EXPECT_EQ(result->chosen.rank, 3);
  ASSERT_EQ(result->top.size(), 4u);
  const std::vector<TokenId> ids = {1, 0, 2, 3};
  const std::vector<double> probabilities = {0.5, 0.25, 0.125, 0.125};
  const std::vector<int> ranks = {1, 2, 3, 3};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(result->top[i].id, ids[i]);
    EXPECT_NEAR(result->top[i].logprob, std::log(probabilities[i]), 1e-6);
    EXPECT_EQ(result->top[i].rank, ranks[i]);
  }
}

TEST(PositionLogprobs, AreStableForHugeLogits) {
  const std::vector<float> logits = {30000.0f, 29999.0f, -30000.0f};
  const Result<PositionLogprobs> result = position_logprobs(logits, 2, 1);
  ASSERT_TRUE(result.ok());
  EXPECT_NEAR(result->top[0].logprob, -std::log1p(std::exp(-1.0)), 1e-6);
  EXPECT_NEAR(result->chosen.logprob, -60000.0, 1.0);
}

TEST(PositionLogprobs, SumToOneAndAgreeWithDoublesOnARealisticVocabulary) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  std::vector<float> logits(49152);
  for (float& x : logits) x = normal(random);
  const double maximum = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (float x : logits) sum += std::exp(x - maximum);
  for (TokenId token : {0, 777, 49151}) {
    const Result<PositionLogprobs> result = position_logprobs(logits, token, 0);
    ASSERT_TRUE(result.ok());
    EXPECT_TRUE(result->top.empty());
    EXPECT_NEAR(result->chosen.logprob, logits[static_cast<size_t>(token)] - maximum - std::log(sum), 2e-6);
  }
}

TEST(PositionLogprobs, AnImpossibleTokenHasMinusInfinityAndDoesNotFillTheTop) {
  const std::vector<float> logits = {0.0f, -kInfinite, 0.0f};
  const Result<PositionLogprobs> result = position_logprobs(logits, 1, 3);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->chosen.logprob, -kInfinite);
  EXPECT_EQ(result->chosen.rank, 3);
  EXPECT_EQ(result->top.size(), 2u);
}

TEST(PositionLogprobs, OfARowThatIsNoDistributionAreAnError) {
  for (float bad : {kNaN, kInfinite}) {
    EXPECT_EQ(position_logprobs(std::vector<float>{0.0f, bad}, 0, 1).status().code(), StatusCode::kInternal);
  }
  EXPECT_FALSE(position_logprobs(std::vector<float>{-kInfinite, -kInfinite}, 0, 1).ok());
}

TEST(RowMath, MomentsAndEntropySumsLeaveOutWhatIsBanned) {
  const unsigned seed = 23;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (size_t size : {size_t{1}, size_t{3}, size_t{4}, size_t{1001}}) {
    std::vector<float> row = random_row(random, size, false);
    row[0] = 1.0f;
    if (size > 3) row[2] = -kInfinite;
    const float maximum = *std::max_element(row.begin(), row.end());
    double count = 0.0, sum = 0.0, squares = 0.0, weights = 0.0, weighted = 0.0;
    for (float x : row) {
      if (x == -kInfinite) continue;
      const double shifted = static_cast<double>(x) - static_cast<double>(maximum);
      count += 1.0;
      sum += shifted;
      squares += shifted * shifted;
      weights += std::exp(shifted);
      weighted += std::exp(shifted) * shifted;
    }
    const ShiftedMoments moments = shifted_moments(row, maximum);
    EXPECT_EQ(moments.count, count);
    EXPECT_NEAR(moments.sum, sum, 1e-5 * std::abs(sum));
    EXPECT_NEAR(moments.sum_of_squares, squares, 1e-5 * squares);
    const ShiftedWeights exponentials = shifted_weights(row, maximum);
    EXPECT_EQ(exponentials.count, count);
    EXPECT_NEAR(exponentials.sum, weights, 1e-6 * weights);
    EXPECT_NEAR(exponentials.weighted_sum, weighted, 1e-5 * std::abs(weighted));
  }
}

TEST(RowMath, AWeightOfZeroCountsForNothingInAWeightedSum) {
  const std::vector<float> weights = {0.5f, 0.0f, 2.0f, 0.0f, 1.0f, 0.0f};
  const std::vector<float> values = {2.0f, -kInfinite, 3.0f, 7.0f, -1.0f, -kInfinite};
  EXPECT_DOUBLE_EQ(weighted_sum(weights, values), 6.0);
}

TEST(RowMath, GatheringGivesUpWhereThereIsTooMuch) {
  const unsigned seed = 29;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const std::vector<float> row = random_row(random, 1000, false);
  std::vector<TokenId> expected;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] >= 0.25f) expected.push_back(static_cast<TokenId>(i));
  }
  std::vector<Candidate> candidates;
  ASSERT_TRUE(gather_at_least(row, 0.25f, expected.size(), candidates));
  std::vector<TokenId> found;
  for (const Candidate& candidate : candidates) found.push_back(candidate.id);
  EXPECT_EQ(found, expected);
  EXPECT_FALSE(gather_at_least(row, 0.25f, expected.size() - 1, candidates));
}

TEST(RowMath, KeepingTheLargestBansTheRestAndTheLaterOnesAmongEquals) {
  std::vector<float> row = {1.0f, 3.0f, 2.0f, -kInfinite, 2.0f, 2.0f, 0.0f};
  std::vector<Candidate> candidates;
  keep_largest(row, 7, candidates);
  EXPECT_EQ(row, (std::vector<float>{1.0f, 3.0f, 2.0f, -kInfinite, 2.0f, 2.0f, 0.0f}));
  keep_largest(row, 3, candidates);
  EXPECT_EQ(row, (std::vector<float>{-kInfinite, 3.0f, 2.0f, -kInfinite, 2.0f, -kInfinite, -kInfinite}));
  keep_largest(row, 1, candidates);
  EXPECT_EQ(row, (std::vector<float>{-kInfinite, 3.0f, -kInfinite, -kInfinite, -kInfinite, -kInfinite, -kInfinite}));
}

}  // namespace
}  // namespace quire::sampling
