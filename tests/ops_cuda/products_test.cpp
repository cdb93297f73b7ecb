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
#include "tests/cuda_on_host/refused_products.h"
#include "tests/ops/ops_test_support.h"

namespace quire::ops::cuda {
namespace {

using ops::testing::largest_difference;
using ops::testing::Random;
using ops::testing::StoredWeights;

constexpr int64_t kRows = 40;
constexpr int64_t kOutputs = 48;
constexpr int64_t kColumns = 64;

// x as the reference rounds it to 8 bits, each run of so many numbers by itself.
std::vector<float> rounded_in_runs(const std::vector<float>& x, int64_t run) {
  std::vector<float> read;
  for (auto from = x.begin(); from != x.end(); from += run) {
    const std::vector<uint8_t> codes = reference::rounded_row(DType::kF8E4M3, {from, from + run});
    for (int64_t i = 0; i < run; ++i) read.push_back(reference::row_value(DType::kF8E4M3, codes.data(), run, i));
  }
  return read;
}

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

TEST_F(Products, OfTheHeadAreMadeFor256SequencesAtOnceHoweverLargeTheVocabulary) {
  for (const int64_t vocabulary : {512, 128'256, 151'936, 262'208, 1'000'000})
    EXPECT_GE(backend_->logit_rows(vocabulary), 256) << vocabulary;
}

// What cuBLASLt refuses is computed by kernels that read the weight as it is: x is not rounded to it.
TEST_F(Products, ThatTheLibraryRefusesComeFromKernelsOfOurOwn) {
  const std::vector<float> values = random_.normals(kOutputs * kColumns, 0.1f);
  const TensorView floats{values.data(), DType::kF32, Shape{kOutputs, kColumns}};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kQ8_0}) {
    SCOPED_TRACE(name(dtype));
    const StoredWeights stored(dtype == DType::kF8E4M3 ? DType::kF32 : dtype, kOutputs, kColumns, random_);
    const TensorView view = stored.view();
    const auto weight =
        dtype == DType::kF8E4M3 ? backend_->quantise({&floats, 1}, dtype).value() : backend_->pack({&view, 1}).value();
    // Of 70 rows, which blocks are expanded for as well.
    constexpr int64_t kMany = 70;
    const std::vector<float> x = random_.normals(kMany * kColumns);
    const auto product = [&](Rows in, OutRows out) {
      (*backend_)(LinearArgs{.x = in,
                             .x_stride = kColumns,
                             .num_rows = kMany,
                             .weight = weight.get(),
                             .bias = out.dtype == DType::kF32 ? bias_.data() : nullptr,
                             .out = out,
                             .out_stride = kOutputs});
    };
    std::vector<float> given(static_cast<size_t>(kMany * kOutputs));
    std::vector<float> got(given.size());
    product(x.data(), given.data());
    if (dtype == DType::kF8E4M3) {
      EXPECT_EQ(backend_->input_dtype(*weight, kMany), DType::kF8E4M3);
    }
    refuse_products({DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3});
    product(x.data(), got.data());
    EXPECT_LT(largest_difference(got, given), dtype == DType::kF8E4M3 ? 0.1 : 2e-2);
    EXPECT_NE(got, given) << "the library was not asked";
    if (dtype == DType::kF8E4M3) {  // 16 bits are the next best
      EXPECT_EQ(backend_->input_dtype(*weight, kMany), DType::kF32) << "which are made of floats";
      refuse_products({DType::kF8E4M3});
      std::vector<float> next(given.size());
      product(x.data(), next.data());
      EXPECT_LT(largest_difference(next, got), 1e-3);
      EXPECT_NE(next, got);
      // Codes that were made before it was refused are multiplied all the same.
      std::vector<uint8_t> codes(static_cast<size_t>(kMany * kColumns + kMany * 4), 0x38);  // 1
      std::fill_n(reinterpret_cast<float*>(codes.data() + kMany * kColumns), kMany, 0.25f);
      std::vector<float> of_codes(given.size());
      product({codes.data(), DType::kF8E4M3}, of_codes.data());
      product(std::vector<float>(x.size(), 0.25f).data(), next.data());
      EXPECT_LT(largest_difference(of_codes, next), 1e-3);
    }
    if (backend_->input_dtype(*weight, kMany) == dtype && dtype != DType::kF32) {
      const std::vector<uint16_t> codes = rounded(dtype, x);
      std::vector<float> out(given.size());
      refuse_products({DType::kF16, DType::kBF16});
      product({codes.data(), dtype}, out.data());
      EXPECT_LT(largest_difference(out, given), 1e-5) << "x is what the library was given";
    }
    if (dtype == DType::kBF16) {
      std::vector<uint16_t> narrow(given.size());
      refuse_products({DType::kBF16});
      product(x.data(), {narrow.data(), DType::kBF16});
      for (size_t i = 0; i < narrow.size(); ++i) {
        const float bias = bias_[i % static_cast<size_t>(kOutputs)];
        ASSERT_NEAR(reference::code_to_float(DType::kBF16, narrow[i]), got[i] - bias, 0.02 * (1 + std::abs(got[i])));
      }
    }
    refuse_products({});
  }
}

TEST_F(Products, InputsToWeightsOfEightBitFloatsAreRoundedRowByRowUnlessTheyMayNotBe) {
  const std::vector<float> values = random_.normals(kOutputs * kColumns, 0.1f);
  const TensorView view{values.data(), DType::kF32, Shape{kOutputs, kColumns}};
  const std::vector<float> weights = rounded_in_runs(values, kColumns);
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
  EXPECT_LT(largest_difference(got, expected(rounded_in_runs(x_, kColumns))), 1e-5);
  EXPECT_GT(largest_difference(got, expected(x_)), 1e-3);
  scale_products(false);  // as the library of other cards than Hopper's, after which sums are multiplied by scales
  const std::vector<float> scaled_afterwards = multiply(*weight, x_.data());
  scale_products(true);
  EXPECT_LT(largest_difference(scaled_afterwards, got), 1e-5);
  backend_ = cards::make_card(1, {.rounds_activations = false});
  weight = backend_->quantise({&view, 1}, DType::kF8E4M3).value();
  EXPECT_LT(largest_difference(multiply(*weight, x_.data()), expected(x_)), 1e-5);
}

// A matrix whose squares of 128 by 128 have one scale each.
class SquareScales {
 public:
  SquareScales(int64_t rows, int64_t columns, Random& random) : rows_(rows), columns_(columns) {
    const StoredWeights stored(DType::kF8E4M3_128, rows, columns, random);
    const auto* from = static_cast<const uint8_t*>(stored.view().data);
    bytes_.assign(from, from + rows * row_size());
    for (int64_t row = 0; row < rows; ++row)
      std::memcpy(scales_of(row), scales_of(row / 128 * 128), static_cast<size_t>(row_size() - columns));
  }
  TensorView view() const { return {bytes_.data(), DType::kF8E4M3_128, Shape{rows_, columns_}}; }
  uint8_t* scales_of(int64_t row) { return bytes_.data() + row * row_size() + columns_; }

 private:
  int64_t row_size() const { return quantised_row_bytes(DType::kF8E4M3_128, columns_); }
  int64_t rows_;
  int64_t columns_;
  std::vector<uint8_t> bytes_;
};

class ScaledBlocks : public Products {
 protected:
  // The largest difference from products in double precision with x rounded so, and with x as it is.
  struct Differences {
    double rounded;
    double exact;
  };
  Differences differences(const TensorView& view, int64_t num_rows, bool with_bias) {
    const int64_t outputs = view.shape[0];
    const int64_t columns = view.shape[1];
    const std::vector<float> x = random_.normals(num_rows * columns, 2.0f);
    const std::vector<float> bias = random_.normals(outputs);
    const auto weight = backend_->pack({&view, 1}).value();
    EXPECT_EQ(weight->bytes(), backend_->packed_bytes(DType::kF8E4M3_128, outputs, columns));
    std::vector<float> out(static_cast<size_t>(num_rows * outputs + 1), kUntouched);
    (*backend_)(LinearArgs{.x = x.data(),
                           .x_stride = columns,
                           .num_rows = num_rows,
                           .weight = weight.get(),
                           .bias = with_bias ? bias.data() : nullptr,
                           .out = out.data(),
                           .out_stride = outputs});
    EXPECT_EQ(out.back(), kUntouched);
    out.pop_back();
    const std::vector<float> values = ops::testing::values_of(view);
    const auto difference = [&](const std::vector<float>& seen) {
      std::vector<float> expected;
      for (int64_t m = 0; m < num_rows; ++m) {
        for (int64_t n = 0; n < outputs; ++n) {
          double sum = with_bias ? bias[static_cast<size_t>(n)] : 0.0;
          for (int64_t k = 0; k < columns; ++k)
            sum += double{seen[static_cast<size_t>(m * columns + k)]} * values[static_cast<size_t>(n * columns + k)];
          expected.push_back(static_cast<float>(sum));
        }
      }
      return largest_difference(out, expected);
    };
    return {difference(rounded_in_runs(x, std::min(columns, kScaleColumns))), difference(x)};
  }
  static constexpr float kUntouched = 12345.0f;
};

// Two rows of squares and five in a row, of which the library is given eight; rows of x that are no whole fours.
TEST_F(ScaledBlocks, InputsAreRounded128ColumnsAtATime) {
  SquareScales squares(144, 640, random_);
  for (const int64_t num_rows : {12, 13, 66}) {
    const Differences found = differences(squares.view(), num_rows, /*with_bias=*/num_rows != 12);
    EXPECT_LT(found.rounded, 1e-5) << num_rows;
    EXPECT_GT(found.exact, 1e-3) << num_rows;
  }
}

// The last three are too few to copy all.
TEST_F(ScaledBlocks, ManyRowsThatAreNoWholeFoursAreMultipliedInTwoParts) {
  SquareScales squares(16, 128, random_);
  EXPECT_LT(differences(squares.view(), 515, /*with_bias=*/true).rounded, 1e-5);
}

TEST_F(ScaledBlocks, InputsAreNotRoundedTo8BitsWhereTheLibraryCannotTakeTheScalesOrMayNot) {
  SquareScales squares(48, 256, random_);
  std::memset(squares.scales_of(17), 0, sizeof(float));
  EXPECT_LT(differences(squares.view(), 24, /*with_bias=*/false).exact, 2e-3);  // both in F16
  EXPECT_LT(differences(squares.view(), 72, /*with_bias=*/true).exact, 2e-3);   // the same
  backend_ = cards::make_card(1, {.rounds_activations = false});
  EXPECT_LT(differences(SquareScales(48, 256, random_).view(), 72, /*with_bias=*/true).exact, 1e-5);
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

// Between few rows and many, codes are decoded for tensor cores once, without the library. Inputs that must not be
// rounded have no tensor cores.
TEST_F(Products, BlocksOf2To64RowsAreDecodedOnce) {
  const int64_t columns = 512;
  const StoredWeights stored(DType::kQ4_K, kOutputs, columns, random_);
  const TensorView view = stored.view();
  const std::vector<float> values = ops::testing::values_of(view);
  const std::vector<float> x = random_.normals(64 * columns);
  refuse_products({DType::kF16, DType::kF32});
  for (const bool rounds : {true, false}) {
    backend_ = cards::make_card(1, {.rounds_activations = rounds});
    const auto weight = backend_->pack({&view, 1}).value();
    for (const int64_t rows : {1, 2, 64}) {
      std::vector<float> got(static_cast<size_t>(rows * kOutputs));
      (*backend_)(LinearArgs{.x = x.data(),
                             .x_stride = columns,
                             .num_rows = rows,
                             .weight = weight.get(),
                             .bias = bias_.data(),
                             .out = got.data(),
                             .out_stride = kOutputs});
      std::vector<float> exact;
      for (int64_t m = 0; m < rows; ++m) {
        for (int64_t n = 0; n < kOutputs; ++n) {
          double sum = bias_[static_cast<size_t>(n)];
          for (int64_t k = 0; k < columns; ++k)
            sum += double{x[static_cast<size_t>(m * columns + k)]} * values[static_cast<size_t>(n * columns + k)];
          exact.push_back(static_cast<float>(sum));
        }
      }
      const double difference = largest_difference(got, exact);
      const bool decoded = rounds && rows > 1;
      EXPECT_LT(difference, decoded ? 2e-3 : 1e-5) << rows;
      EXPECT_EQ(difference > 1e-5, decoded) << rows;
    }
  }
  refuse_products({});
}

}  // namespace
}  // namespace quire::ops::cuda
