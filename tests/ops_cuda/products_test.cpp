// Matrix products of many rows as a card's backend makes them: what their inputs and outputs are rounded to.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/quantise.h"
#include "ops/reference/kv_values.h"
#include "ops/reference/reference_backend.h"
#include "ops/reference/rounded_rows.h"
#include "tests/ops/ops_test_support.h"

namespace quire::ops::cuda {
namespace {

using ops::testing::largest_difference;
using ops::testing::Random;
using ops::testing::StoredWeights;

constexpr int64_t kRows = 40;
constexpr int64_t kOutputs = 48;
constexpr int64_t kColumns = 64;

class Products : public ::testing::Test {
 protected:
  void SetUp() override {
    if (backend_ == nullptr) GTEST_SKIP() << "this machine lacks cuda";
  }
  std::vector<float> multiply(const PackedMatrix& weight, Rows x, bool with_bias = true) {
    std::vector<float> out(static_cast<size_t>(kRows * kOutputs));
    multiply_to(weight, x, out.data(), with_bias);
    return out;
  }
  void multiply_to(const PackedMatrix& weight, Rows x, OutRows out, bool with_bias) {
    (*backend_)(LinearArgs{.x = x,
                           .x_stride = kColumns,
                           .num_rows = kRows,
                           .weight = &weight,
                           .bias = with_bias ? bias_.data() : nullptr,
                           .out = out,
                           .out_stride = kOutputs});
  }
  static std::vector<uint16_t> rounded(DType dtype, const std::vector<float>& values) {
    std::vector<uint16_t> codes;
    for (const float value : values) codes.push_back(reference::float_to_code(dtype, value));
    return codes;
  }

  Random random_{17};
  std::unique_ptr<Backend> backend_ = ops::testing::make_backend("cuda");
  std::vector<float> bias_ = random_.normals(kOutputs);
  std::vector<float> x_ = random_.normals(kRows * kColumns, 2.0f);
};

TEST_F(Products, InputsOf16BitsAreThoseThatTheProductWouldRoundThemTo) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const StoredWeights stored(dtype, kOutputs, kColumns, random_);
    const TensorView view = stored.view();
    const auto weight = backend_->pack({&view, 1}).value();
    ASSERT_EQ(backend_->input_dtype(*weight, kRows), dtype);
    EXPECT_EQ(backend_->input_dtype(*weight, 1), DType::kF32);
    const std::vector<uint16_t> codes = rounded(dtype, x_);
    EXPECT_EQ(multiply(*weight, {codes.data(), dtype}), multiply(*weight, x_.data())) << name(dtype);
  }
}

TEST_F(Products, OutputsOfBFloat16AreTheSumsRounded) {
  const StoredWeights stored(DType::kBF16, kOutputs, kColumns, random_);
  const TensorView view = stored.view();
  const auto weight = backend_->pack({&view, 1}).value();
  std::vector<uint16_t> out(static_cast<size_t>(kRows * kOutputs));
  multiply_to(*weight, x_.data(), {out.data(), DType::kBF16}, /*with_bias=*/false);
  EXPECT_EQ(out, rounded(DType::kBF16, multiply(*weight, x_.data(), /*with_bias=*/false)));
}

TEST_F(Products, InputsToWeightsOfEightBitFloatsAreRoundedRowByRowUnlessTheyMayNotBe) {
  const std::vector<float> values = random_.normals(kOutputs * kColumns, 0.1f);
  const TensorView view{values.data(), DType::kF32, Shape{kOutputs, kColumns}};
  const auto read_rows = [](const std::vector<float>& rows) {  // after rounding
    std::vector<float> read;
    for (auto row = rows.begin(); row != rows.end(); row += kColumns) {
      const std::vector<uint8_t> codes = reference::rounded_row(DType::kF8E4M3, {row, row + kColumns});
      float scale = 0;
      std::memcpy(&scale, codes.data() + kColumns, sizeof(scale));
      for (int64_t i = 0; i < kColumns; ++i)
        read.push_back(reference::code_to_float(DType::kF8E4M3, codes[static_cast<size_t>(i)]) * scale);
    }
    return read;
  };
  const std::vector<float> weights = read_rows(values);
  const auto expected = [&](const std::vector<float>& x) {
    std::vector<float> out;
    for (int64_t m = 0; m < kRows; ++m) {
      for (int64_t n = 0; n < kOutputs; ++n) {
        double sum = bias_[static_cast<size_t>(n)];
        for (int64_t k = 0; k < kColumns; ++k)
          sum += static_cast<double>(x[static_cast<size_t>(m * kColumns + k)]) *
                 weights[static_cast<size_t>(n * kColumns + k)];
        out.push_back(static_cast<float>(sum));
      }
    }
    return out;
  };
  auto weight = backend_->quantise({&view, 1}, DType::kF8E4M3).value();
  EXPECT_EQ(weight->bytes(), backend_->packed_bytes(DType::kF8E4M3, kOutputs, kColumns));
  const std::vector<float> got = multiply(*weight, x_.data());
  EXPECT_LT(largest_difference(got, expected(read_rows(x_))), 1e-5);
  EXPECT_GT(largest_difference(got, expected(x_)), 1e-3);
  backend_ = cards::make_card(1, {.rounds_activations = false});
  weight = backend_->quantise({&view, 1}, DType::kF8E4M3).value();
  EXPECT_LT(largest_difference(multiply(*weight, x_.data()), expected(x_)), 1e-5);
}

// More rows than are worth reading blocks again for: weights and inputs become F16, where one row lies far out of its
// range and another has no numbers.
TEST_F(Products, BlocksAreMultipliedInF16WhateverTheRange) {
  constexpr int64_t kMany = 70;
  for (const DType dtype : {DType::kQ4_0, DType::kQ4_K, DType::kQ8_0}) {
    const int64_t columns = 256;
    const StoredWeights stored(dtype, kOutputs, columns, random_);
    const TensorView view = stored.view();
    const auto weight = backend_->pack({&view, 1}).value();
    std::vector<float> x = random_.normals(kMany * columns);
    for (int64_t i = 0; i < columns; ++i) {
      x[static_cast<size_t>(3 * columns + i)] *= 1e9f;
      x[static_cast<size_t>(5 * columns + i)] = 65504.0f;
    }
    x[static_cast<size_t>(7 * columns)] = std::numeric_limits<float>::infinity();
    auto reference = make_reference_backend();
    const auto plain = reference->pack({&view, 1}).value();
    for (const bool with_bias : {false, true}) {
      std::vector<std::vector<float>> outs;
      for (const auto& [backend, packed] : {std::pair{backend_.get(), weight.get()}, {reference.get(), plain.get()}}) {
        outs.emplace_back(static_cast<size_t>(kMany * kOutputs));
        (*backend)(LinearArgs{.x = x.data(),
                              .x_stride = columns,
                              .num_rows = kMany,
                              .weight = packed,
                              .bias = with_bias ? bias_.data() : nullptr,
                              .out = outs.back().data(),
                              .out_stride = kOutputs});
      }
      for (int64_t m = 0; m < kMany; ++m) {
        if (m == 7) continue;  // no numbers in either
        float largest = 1;
        for (int64_t i = 0; i < columns; ++i)
          largest = std::max(largest, std::fabs(x[static_cast<size_t>(m * columns + i)]));
        for (int64_t n = 0; n < kOutputs; ++n) {
          const auto at = static_cast<size_t>(m * kOutputs + n);
          ASSERT_NEAR(outs[0][at], outs[1][at], 2e-3 * largest) << name(dtype) << ", row " << m;
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::ops::cuda
