#include "quantize/round_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tensor/stored_values.h"

namespace quire::quantize {
namespace {

constexpr DType kFormats[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                              DType::kQ5_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// Normal values, or with a few that are far from the others.
std::vector<float> random_row(uint32_t seed, size_t count, bool heavy) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> row(count);
  for (float& x : row) {
    x = normal(random);
    if (heavy && random() % 50 == 0) x *= 8;
  }
  return row;
}

std::vector<float> random_importance(uint32_t seed, size_t count) {
  std::mt19937 random(seed);
  std::vector<float> importance(count);
  for (float& x : importance) x = std::exp(std::normal_distribution<float>(0, 2)(random));
  return importance;
}

std::vector<float> round_trip(DType format, const std::vector<float>& row, const std::vector<float>& importance = {}) {
  std::vector<uint8_t> bytes(static_cast<size_t>(row_bytes(format, std::ssize(row))));
  EXPECT_TRUE(round_row(format, row, importance, bytes.data())) << name(format);
  std::vector<float> out(row.size());
  read_stored_row(format, bytes.data(), std::ssize(row), out.data());
  return out;
}

double error(const std::vector<float>& one, const std::vector<float>& other, const std::vector<float>& weights = {}) {
  double sum = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    const double off = static_cast<double>(one[i]) - static_cast<double>(other[i]);
    sum += off * off * (weights.empty() ? 1.0 : static_cast<double>(weights[i]));
  }
  return sum;
}

// Codes spread evenly over the range of each `group` values, with a float for a scale: from the lowest to the highest,
// or alike on both sides of 0.
std::vector<float> spread_evenly(const std::vector<float>& row, size_t group, int bits, bool minimum) {
  std::vector<float> out(row.size());
  for (size_t begin = 0; begin < row.size(); begin += group) {
    float low = row[begin];
    float high = row[begin];
    for (size_t i = begin; i < begin + group; ++i) {
      low = std::min(low, row[i]);
      high = std::max(high, row[i]);
    }
    const float most = std::max(std::abs(low), std::abs(high));
    const float scale = minimum ? (high - low) / static_cast<float>((1 << bits) - 1)
                                : most / (static_cast<float>(1 << (bits - 1)) - 0.5f);
    for (size_t i = begin; i < begin + group; ++i) {
      const float shift = minimum ? low : 0;
      const float limit = static_cast<float>(1 << (bits - 1));
      float code = scale == 0 ? 0 : std::round((row[i] - shift) / scale);
      if (!minimum) code = std::clamp(code, -limit, limit - 1);
      out[i] = scale * code + shift;
    }
  }
  return out;
}

struct Plain {
  DType format;
  size_t group;
  int bits;
  bool minimum;
};

TEST(RoundBlocks, LeaveNoMoreErrorThanCodesSpreadEvenly) {
  constexpr Plain kPlain[] = {{DType::kQ8_0, 32, 8, false}, {DType::kQ4_0, 32, 4, false}, {DType::kQ4_1, 32, 4, true},
                              {DType::kQ5_0, 32, 5, false}, {DType::kQ5_1, 32, 5, true},  {DType::kQ4_K, 32, 4, true},
                              {DType::kQ5_K, 32, 5, true},  {DType::kQ6_K, 16, 6, false}};
  for (const bool heavy : {false, true}) {
    const std::vector<float> row = random_row(7, 256 * 64, heavy);
    for (const Plain& plain : kPlain) {
      const double rounded = error(row, round_trip(plain.format, row));
      const double even = error(row, spread_evenly(row, plain.group, plain.bits, plain.minimum));
      // Scales of 16 bits, and of 6 bits in the K formats, have to be made up for by the search; 8 bits have none.
      EXPECT_LT(rounded, even * (plain.bits == 8 ? 1.05 : plain.bits == 4 ? 0.97 : 1.0)) << name(plain.format) << heavy;
    }
  }
}

TEST(RoundBlocks, MoreBitsLeaveLessError) {
  const std::vector<float> row = random_row(11, 256 * 16, true);
  const auto of = [&](DType format) { return error(row, round_trip(format, row)); };
  EXPECT_LT(of(DType::kQ8_0), of(DType::kQ6_K));
  EXPECT_LT(of(DType::kQ6_K), of(DType::kQ5_K));
  EXPECT_LT(of(DType::kQ5_K), of(DType::kQ4_K) / 3);
  EXPECT_LT(of(DType::kQ5_1), of(DType::kQ4_1) / 3);
  EXPECT_LT(of(DType::kQ4_1), of(DType::kQ4_0));
}

TEST(RoundBlocks, WhatMattersMoreIsOffByLess) {
  const std::vector<float> row = random_row(3, 256 * 64, true);
  const std::vector<float> importance = random_importance(5, row.size());
  for (const DType format : kFormats) {
    if (format == DType::kQ8_0) continue;  // nothing is searched
    const double asked = error(row, round_trip(format, row, importance), importance);
    const double unasked = error(row, round_trip(format, row), importance);
    EXPECT_LT(asked, unasked * 0.98) << name(format);
  }
}

TEST(RoundBlocks, KeepZerosAndWhatTheFormatHoldsExactly) {
  const std::vector<float> zeros(256, 0.0f);
  for (const DType format : kFormats) EXPECT_EQ(round_trip(format, zeros), zeros) << name(format);
  // -8 to 7 times a power of two.
  std::vector<float> codes(256);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = 0.25f * static_cast<float>(static_cast<int>(i % 16) - 8);
  for (const DType format : {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kF16, DType::kBF16, DType::kF32})
    EXPECT_EQ(round_trip(format, codes), codes) << name(format);
}

TEST(RoundBlocks, OneValueOfABlockIsKeptNearly) {
  for (const DType format : kFormats) {
    for (const float value : {1.0f, -1.0f, 1e-2f, -30000.0f}) {
      std::vector<float> row(256, 0.0f);
      row[77] = value;
      const std::vector<float> out = round_trip(format, row);
      EXPECT_NEAR(out[77], value, std::abs(value) * 0.02f) << name(format) << " " << value;
      EXPECT_NEAR(out[78], 0.0f, std::abs(value) * 0.02f) << name(format) << " " << value;
    }
  }
}

TEST(RoundBlocks, NumbersAtTheEdgesOfFloatsAreNoTrouble) {
  for (const DType format : kFormats) {
    for (const float value : {std::numeric_limits<float>::denorm_min(), 1e-38f, 1e-20f}) {
      std::vector<float> row(256, value);
      row[3] = -value;
      for (const float x : round_trip(format, row)) EXPECT_NEAR(x, 0.0f, 1e-6f) << name(format);
    }
    std::vector<float> row(256, 0.0f);
    row[0] = 3e38f;
    row[1] = -3e38f;
    std::vector<uint8_t> bytes(static_cast<size_t>(row_bytes(format, 256)));
    EXPECT_FALSE(round_row(format, row, {}, bytes.data())) << name(format);
  }
  std::vector<float> row(32, 70000.0f);
  std::vector<uint8_t> bytes(64);
  EXPECT_FALSE(round_row(DType::kF16, row, {}, bytes.data()));
  EXPECT_TRUE(round_row(DType::kBF16, row, {}, bytes.data()));
}

TEST(SymmetricScale, LeavesNoMoreErrorThanTheRangeItself) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const std::vector<float> row = random_row(seed, 100, seed % 2 == 0);
    const std::vector<float> importance = random_importance(seed, row.size());
    float most = 0;
    for (const float x : row) most = std::max(most, std::abs(x));
    const auto off_by = [&](float scale) {
      std::vector<float> out;
      for (const float x : row) out.push_back(scale * std::clamp(std::nearbyint(x / scale), -8.0f, 7.0f));
      return error(row, out, importance);
    };
    const float scale = symmetric_scale(row, importance, 4);
    ASSERT_GT(scale, 0);
    EXPECT_LE(off_by(scale), off_by(most / 7.5f) * 1.0001) << seed;
  }
  EXPECT_EQ(symmetric_scale(std::vector<float>(32, 0.0f), {}, 4), 0);
}

}  // namespace
}  // namespace quire::quantize
