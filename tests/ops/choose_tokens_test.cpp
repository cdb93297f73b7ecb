// Tokens drawn on the device.
#include "ops/choose_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>

#include "tests/ops/ops_test_support.h"

namespace quire::ops::testing {
namespace {

// --- what the definition says, by hand

TEST(ChooseToken, DrawsWhereTheSumByIndexPassesTheNumber) {
  // Weights 0.25, 1, 0.5, 0, 0.25 of 2.
  const std::vector<float> row = {std::log(0.25f), 0.0f, std::log(0.5f), -INFINITY, std::log(0.25f)};
  const auto draw = [&](double u, TokenChoice choice = {}) {
    choice.inverse_temperature = 1;
    choice.u = u;
    return choose_token(row.data(), static_cast<int64_t>(row.size()), choice);
  };
  EXPECT_EQ(draw(0), 0);
  EXPECT_EQ(draw(0.124), 0);
  EXPECT_EQ(draw(0.126), 1);
  EXPECT_EQ(draw(0.624), 1);
  EXPECT_EQ(draw(0.626), 2);
  EXPECT_EQ(draw(0.874), 2);
  EXPECT_EQ(draw(0.876), 4);  // 3 has no weight
  EXPECT_EQ(draw(std::nextafter(1.0, 0.0)), 4);
  // The 2 largest; the 3 largest are 4, for the last two are equal.
  EXPECT_EQ(draw(0, {.top_k = 2}), 1);
  EXPECT_EQ(draw(0.99, {.top_k = 2}), 2);
  EXPECT_EQ(draw(0, {.top_k = 3}), 0);
  EXPECT_EQ(draw(0.99, {.top_k = 3}), 4);
  EXPECT_EQ(draw(0.99, {.min_p = 0.5f}), 2);
  EXPECT_EQ(draw(0.99, {.min_p = 0.51f}), 1);
  // Half of it is 1's; three quarters with 2; of the equal ones the first is taken first.
  EXPECT_EQ(draw(0.99, {.top_p = 0.0f}), 1);
  EXPECT_EQ(draw(0.99, {.top_p = 0.5f}), 1);
  EXPECT_EQ(draw(0.99, {.top_p = 0.75f}), 2);
  EXPECT_EQ(draw(0, {.top_p = 0.8f}), 0);
  EXPECT_EQ(draw(0.99, {.top_p = 0.8f}), 2);
  // After top_k 2, of 1.5: 1 alone holds two thirds.
  EXPECT_EQ(draw(0.99, {.top_k = 2, .top_p = 0.6f}), 1);
  EXPECT_EQ(draw(0.99, {.top_k = 2, .top_p = 0.7f}), 2);
}

// --- every backend

class ChooseTokensTest : public ::testing::TestWithParam<std::string> {};

float awkward(Random& random) {
  switch (random.between(0, 5)) {
    case 0:
      return -std::numeric_limits<float>::infinity();
    case 1:
      return static_cast<float>(random.between(-2, 2));  // many that are equal, 0 among them
    case 2:
      return -0.0f;
    default:
      return 4 * random.normal();
  }
}

TEST_P(ChooseTokensTest, ChoosesAsTheReferenceWhateverIsKept) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  int64_t drawn = 0;
  int64_t others = 0;
  // A row alone is shared by as many blocks as may be; of the last sizes more numbers are equal than are listed.
  for (const auto& [size, first_kind, rows] : std::vector<std::array<int64_t, 3>>{
           {1, 0, 40}, {2, 0, 40}, {33, 0, 40}, {1025, 0, 40}, {3003, 0, 40}, {3003, 22, 1}, {20011, 10, 6}}) {
    std::vector<float> in = random.normals(static_cast<size_t>(rows * size), 3.0f);
    std::vector<TokenChoice> choices(static_cast<size_t>(rows));
    for (int64_t t = 0; t < rows; ++t) {
      float* row = in.data() + t * size;
      const int64_t kind = first_kind + t;
      if (kind % 2 == 0) std::generate_n(row, size, [&] { return awkward(random); });
      if (kind == 6) row[size / 2] = nan;
      if (kind == 7) row[size - 1] = std::numeric_limits<float>::infinity();
      if (kind == 8) std::fill_n(row, size, -std::numeric_limits<float>::infinity());
      if (kind % 10 == 1) std::fill_n(row, size, -7.0f);
      choices[static_cast<size_t>(t)] = {
          .inverse_temperature = kind == 10 ? 0.0f : std::exp(random.normal()),
          .min_p = kind % 4 == 1 ? 0.2f * std::abs(random.normal()) : 0.0f,
          .top_k = kind % 3 == 1 ? static_cast<int32_t>(random.between(1, 60)) : 0,
          .top_p = kind % 5 < 3 ? static_cast<float>(random.between(0, 100)) / 100 : 1.0f,
          .u = kind % 7 == 0 ? std::nextafter(1.0, 0.0) : static_cast<double>(random.between(0, 999999)) / 1e6};
    }
    std::vector<int32_t> tokens(static_cast<size_t>(rows), 77);
    (*backend)(ChooseTokensArgs{
        .in = in.data(), .num_rows = rows, .size = size, .choices = choices.data(), .tokens = tokens.data()});
    for (int64_t t = 0; t < rows; ++t) {
      const int32_t expected = choose_token(in.data() + t * size, size, choices[static_cast<size_t>(t)]);
      const int32_t token = tokens[static_cast<size_t>(t)];
      ++drawn;
      others += token != expected;
      if (GetParam() == "cuda" && !cards::is_emulated(GetParam()))
        continue;  // a card's exp is not the host's to the bit
      EXPECT_EQ(token, expected) << "size " << size << ", kind " << first_kind + t;
    }
  }
  EXPECT_LE(others, drawn / 50);
}

// Rows of a vocabulary's size, as far apart as a model's: more of them than are at work together, and some that are one
// of several pieces.
TEST_P(ChooseTokensTest, ChoosesOfAVocabularyWhateverIsAtWorkBesides) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  for (const auto& [size, rows] : std::vector<std::array<int64_t, 2>>{{128256, 3}, {50257, 5}, {8300, 410}}) {
    std::vector<float> in;
    std::vector<TokenChoice> choices;
    for (int64_t t = 0; t < rows; ++t) {
      const std::vector<float> row = random.normals(static_cast<size_t>(size), 1 + static_cast<float>(t % 3));
      in.insert(in.end(), row.begin(), row.end());
      choices.push_back({.inverse_temperature = t % 7 == 6 ? 0 : std::exp(random.normal() / 2),
                         .top_k = t % 5 == 4 ? 50 : 0,
                         .top_p = t % 4 == 3 ? 1.0f : static_cast<float>(random.between(1, 99)) / 100,
                         .u = static_cast<double>(random.between(0, 999999)) / 1e6});
    }
    std::vector<int32_t> tokens(static_cast<size_t>(rows), 77);
    (*backend)(ChooseTokensArgs{
        .in = in.data(), .num_rows = rows, .size = size, .choices = choices.data(), .tokens = tokens.data()});
    int64_t others = 0;
    for (int64_t t = 0; t < rows; ++t) {
      const int32_t expected = choose_token(in.data() + t * size, size, choices[static_cast<size_t>(t)]);
      others += tokens[static_cast<size_t>(t)] != expected;
      if (GetParam() == "cuda" && !cards::is_emulated(GetParam())) continue;
      EXPECT_EQ(tokens[static_cast<size_t>(t)], expected) << "size " << size << ", row " << t;
    }
    EXPECT_LE(others, 1 + rows / 20) << "size " << size;
  }
}

// As often as they are likely.
TEST_P(ChooseTokensTest, DrawsAsOftenAsWeightsSay) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  constexpr int64_t kSize = 40;
  constexpr int64_t kRows = 500;
  Random random(5);
  const std::vector<float> row = random.normals(kSize, 1.5f);
  std::vector<float> in;
  std::vector<TokenChoice> choices;
  for (int64_t t = 0; t < kRows; ++t) {
    in.insert(in.end(), row.begin(), row.end());
    choices.push_back({.inverse_temperature = 0.5f, .u = (static_cast<double>(t) + 0.5) / kRows});
  }
  std::vector<int32_t> tokens(kRows);
  (*backend)(ChooseTokensArgs{
      .in = in.data(), .num_rows = kRows, .size = kSize, .choices = choices.data(), .tokens = tokens.data()});
  double total = 0;
  for (const float logit : row) total += std::exp(0.5 * logit);
  for (int64_t i = 0; i < kSize; ++i) {
    const auto count = static_cast<double>(std::count(tokens.begin(), tokens.end(), static_cast<int32_t>(i)));
    EXPECT_NEAR(count / kRows, std::exp(0.5 * row[static_cast<size_t>(i)]) / total, 1.5 / kRows) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ChooseTokensTest, ::testing::Values("portable", "cuda"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::ops::testing
