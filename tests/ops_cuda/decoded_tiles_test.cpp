// Products of some rows by tensor cores that codes are decoded for once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/cuda/kernels.h"
#include "ops/quantise.h"
#include "ops/reference/kv_values.h"
#include "tests/ops/ops_test_support.h"
#include "tests/ops_cuda/on_card.h"

namespace quire::ops::cuda {
namespace {

using ops::testing::Random;
using ops::testing::same_bits;
using ops::testing::StoredWeights;
using testing::OnCard;

constexpr float kUntouched = 12345.0f;

// Rows of a weight on the card as a backend keeps it; what they are padded with is NaN in formats that have one.
class CardWeight {
 public:
  CardWeight(const TensorView& view)
      : row_bytes_((quantised_row_bytes(view.dtype, view.shape[1]) + 15) / 16 * 16 + 16),
        memory_(padded(view)),
        matrix_{memory_.data(), view.dtype, view.shape[0], view.shape[1], row_bytes_} {}
  const StoredMatrix& matrix() const { return matrix_; }

 private:
  std::vector<uint8_t> padded(const TensorView& view) const {
    const int64_t used = quantised_row_bytes(view.dtype, view.shape[1]);
    std::vector<uint8_t> all(static_cast<size_t>(view.shape[0] * row_bytes_), 0xff);
    for (int64_t row = 0; row < view.shape[0]; ++row) {
      const auto* from = static_cast<const uint8_t*>(view.data) + row * used;
      std::memcpy(all.data() + row * row_bytes_, from, static_cast<size_t>(used));
    }
    return all;
  }
  int64_t row_bytes_;
  OnCard<uint8_t> memory_;
  StoredMatrix matrix_;
};

class DecodedTiles : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  int64_t block() const { return info(dtype()).block_values; }
  // What a number of x is rounded to.
  DType factor() const { return dtype() == DType::kBF16 ? DType::kBF16 : DType::kF16; }
  // How far a product of the weight rounded to halves may be from the exact one, of the sum of magnitudes.
  double most() const {
    switch (dtype()) {
      case DType::kF16:
      case DType::kBF16:
      case DType::kF8E4M3:
        return 1e-6;
      default:
        return 6e-4;
    }
  }

  // spare: floats of scratch for parts of sums.
  std::vector<float> product(const CardWeight& weight, const Rows& x, int64_t num_rows, const std::vector<float>& bias,
                             int64_t spare) const {
    const StoredMatrix& matrix = weight.matrix();
    const int64_t out_stride = matrix.rows + 3;
    const OnCard<float> card_bias(bias);
    const OnCard<float> out(static_cast<size_t>(num_rows * out_stride), kUntouched);
    const int64_t scratch_bytes = (decoded_scratch_bytes(num_rows, matrix, DType::kF32) + 15) / 16 * 16 + spare * 4;
    const OnCard<uint8_t> scratch(static_cast<size_t>(scratch_bytes), uint8_t{0xff});
    multiply_decoded({.weight = matrix,
                      .x = x,
                      .x_stride = matrix.columns + 5,
                      .num_rows = num_rows,
                      .bias = bias.empty() ? nullptr : card_bias.data(),
                      .out = out.data(),
                      .out_stride = out_stride,
                      .scratch = scratch.data(),
                      .scratch_bytes = scratch_bytes},
                     nullptr);
    const std::vector<float> got = out.read();
    std::vector<float> dense;
    for (int64_t m = 0; m < num_rows; ++m) {
      const float* from = got.data() + m * out_stride;
      dense.insert(dense.end(), from, from + matrix.rows);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(from[matrix.rows + i], kUntouched);
    }
    return dense;
  }

  // Rows of `columns`, five NaN behind each.
  static std::vector<float> apart(const std::vector<float>& x, int64_t columns) {
    std::vector<float> all;
    for (auto from = x.begin(); from != x.end(); from += columns) {
      all.insert(all.end(), from, from + columns);
      all.insert(all.end(), 5, std::numeric_limits<float>::quiet_NaN());
    }
    return all;
  }

  std::vector<float> rounded(const std::vector<float>& x) const {
    std::vector<float> out;
    for (const float value : x)
      out.push_back(reference::code_to_float(factor(), reference::float_to_code(factor(), value)));
    return out;
  }

  void expect_product(int64_t rows, int64_t columns, int64_t num_rows, bool with_bias, int64_t spare) {
    const StoredWeights stored(dtype(), rows, columns, random_);
    const std::vector<float> values = ops::testing::values_of(stored.view());
    const CardWeight weight(stored.view());
    const std::vector<float> x = rounded(random_.normals(num_rows * columns));
    const std::vector<float> bias = with_bias ? random_.normals(rows) : std::vector<float>();
    const OnCard<float> card_x(apart(x, columns));
    const std::vector<float> got = product(weight, card_x.data(), num_rows, bias, spare);
    for (int64_t m = 0; m < num_rows; ++m) {
      for (int64_t n = 0; n < rows; ++n) {
        double sum = with_bias ? bias[static_cast<size_t>(n)] : 0.0;
        double magnitude = std::fabs(sum);
        for (int64_t k = 0; k < columns; ++k) {
          const double each =
              double{x[static_cast<size_t>(m * columns + k)]} * values[static_cast<size_t>(n * columns + k)];
          sum += each;
          magnitude += std::fabs(each);
        }
        ASSERT_NEAR(got[static_cast<size_t>(m * rows + n)], sum, most() * magnitude + 2e-7)  // of the smallest halves
            << "row " << m << " of " << num_rows << ", weight row " << n << " of [" << rows << ", " << columns << "]";
      }
    }
  }

  Random random_{23};
};

// Each number of row tiles, and more rows than the largest; rows that fill no tile; columns of less than a piece.
TEST_P(DecodedTiles, MultiplyOverShapes) {
  const std::vector<int64_t> widths = block() == 1    ? std::vector<int64_t>{1, 33, 577}
                                      : block() == 32 ? std::vector<int64_t>{32, 96, 576}
                                                      : std::vector<int64_t>{block(), 3 * block()};
  int turn = 0;
  for (const int64_t columns : widths) {
    for (const int64_t num_rows : {1, 9, 16, 17, 40, 70}) {
      if (num_rows == 70 && columns > 300) continue;
      expect_product(turn % 3 == 0 ? 5 : turn % 3 == 1 ? 70 : 130, columns, num_rows, turn % 2 == 1, 0);
      ++turn;
    }
  }
}

// With room for parts of sums; the last split is the smallest.
TEST_P(DecodedTiles, ShareColumnsAmongBlocks) {
  for (const int64_t num_rows : {11, 33}) expect_product(20, 256 * 11, num_rows, num_rows == 33, 40 * 20 * 6);
}

// More columns than the threads that round a row of x keep.
TEST_P(DecodedTiles, MultiplyWideRows) {
  expect_product(3, 256 * 70, 2, false, 0);
}

// A product with one 1 is the value of the weight as a half.
TEST_P(DecodedTiles, ReadValuesBackThroughUnitVectors) {
  const int64_t columns = block() == 1 ? 600 : 1280;
  const StoredWeights stored(dtype(), 37, columns, random_);
  const std::vector<float> values = ops::testing::values_of(stored.view());
  const CardWeight weight(stored.view());
  for (int64_t k = 0; k < columns; k += 64) {
    std::vector<float> x(static_cast<size_t>(64 * columns));
    for (int64_t m = 0; m < 64 && k + m < columns; ++m) x[static_cast<size_t>(m * columns + k + m)] = 1.0f;
    const OnCard<float> card_x(apart(x, columns));
    const std::vector<float> got = product(weight, card_x.data(), 64, {}, 0);
    for (int64_t m = 0; m < 64 && k + m < columns; ++m) {
      for (int64_t n = 0; n < 37; ++n) {
        const float value = values[static_cast<size_t>(n * columns + k + m)];
        // A group's scale and minimum are halves too: half a unit of the largest value that they make.
        const float of_group = most() < 1e-5 ? 0.0f : 1e-3f * std::fabs(value) + 1e-3f;
        ASSERT_NEAR(got[static_cast<size_t>(m * 37 + n)], value, of_group) << "column " << k + m;
      }
    }
  }
}

// One row lies far out of F16's range, and another has NaN: neither spoils the others.
TEST_P(DecodedTiles, RowsOfAnyRangeSpoilNoOther) {
  const int64_t columns = block() == 1 ? 300 : 512;
  const StoredWeights stored(dtype(), 40, columns, random_);
  const CardWeight weight(stored.view());
  std::vector<float> x = rounded(random_.normals(20 * columns));
  const OnCard<float> before_x(apart(x, columns));
  const std::vector<float> before = product(weight, before_x.data(), 20, {}, 0);
  for (int64_t i = 0; i < columns; ++i) x[static_cast<size_t>(3 * columns + i)] *= 0x1p40f;
  x[static_cast<size_t>(5 * columns + 77)] = std::numeric_limits<float>::quiet_NaN();
  x[static_cast<size_t>(6 * columns + 78)] = std::numeric_limits<float>::infinity();
  const OnCard<float> after_x(apart(x, columns));
  const std::vector<float> after = product(weight, after_x.data(), 20, {}, 0);
  for (int64_t m = 0; m < 20; ++m) {
    for (int64_t n = 0; n < 40; ++n) {
      const auto at = static_cast<size_t>(m * 40 + n);
      if (m == 5 || m == 6) {
        EXPECT_FALSE(std::isfinite(after[at]));
      } else if (m == 3) {
        EXPECT_NEAR(after[at] * 0x1p-40f, before[at], 1e-2f);
      } else {
        EXPECT_TRUE(same_bits(&after[at], &before[at], 1)) << m;
      }
    }
  }
}

TEST_P(DecodedTiles, ReadAndWriteRowsOf16Bits) {
  const int64_t columns = 256;
  const StoredWeights stored(dtype(), 24, columns, random_);
  const CardWeight weight(stored.view());
  const std::vector<float> x = rounded(random_.normals(10 * columns));
  const OnCard<float> floats(apart(x, columns));
  std::vector<uint16_t> codes;
  for (const float value : apart(x, columns)) codes.push_back(reference::float_to_code(factor(), value));
  const OnCard<uint16_t> card_codes(codes);
  const std::vector<float> expected = product(weight, floats.data(), 10, {}, 0);
  const std::vector<float> got = product(weight, {card_codes.data(), factor()}, 10, {}, 0);
  EXPECT_TRUE(same_bits(got.data(), expected.data(), static_cast<int64_t>(got.size())));

  for (const int64_t parts : {0, 4}) {
    const OnCard<uint16_t> out(size_t{10} * 24, uint16_t{0});
    const int64_t scratch_bytes =
        (decoded_scratch_bytes(10, weight.matrix(), DType::kBF16) + 15) / 16 * 16 + parts * 10 * 24 * 4;
    const OnCard<uint8_t> scratch(static_cast<size_t>(scratch_bytes), uint8_t{0xff});
    multiply_decoded({.weight = weight.matrix(),
                      .x = floats.data(),
                      .x_stride = columns + 5,
                      .num_rows = 10,
                      .out = {out.data(), DType::kBF16},
                      .out_stride = 24,
                      .scratch = scratch.data(),
                      .scratch_bytes = scratch_bytes},
                     nullptr);
    const std::vector<uint16_t> narrow = out.read();
    for (size_t i = 0; i < narrow.size(); ++i)
      EXPECT_NEAR(reference::code_to_float(DType::kBF16, narrow[i]), got[i], 0.01 * std::fabs(got[i]) + 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, DecodedTiles,
                         ::testing::Values(DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E4M3_128,
                                           DType::kF8E4M3_32, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                                           DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL,
                                           DType::kMXFP4, DType::kNVFP4, DType::kU4_32, DType::kU4_64, DType::kU4_128,
                                           DType::kU4_32_F32, DType::kI8_32, DType::kI8_128, DType::kI8_32_Z,
                                           DType::kNF4, DType::kFP4, DType::kU4_64_HZ, DType::kU4_32_FZ,
                                           DType::kI8_64_HZ),
                         [](const auto& test) { return std::string(name(test.param)); });

TEST(HasDecodedTiles, NotForFloatsAndFormatsThatAreDecodedWhole) {
  for (const DType dtype : {DType::kF32, DType::kQ2_K, DType::kQ3_K, DType::kIQ4_XS, DType::kI8, DType::kIQ1_M})
    EXPECT_FALSE(has_decoded_tiles(dtype)) << name(dtype);
  EXPECT_TRUE(has_decoded_tiles(DType::kQ4_K));
}

}  // namespace
}  // namespace quire::ops::cuda
