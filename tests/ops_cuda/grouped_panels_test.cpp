// Products of many rows of experts by tensor cores of 16 bits.
#include <gtest/gtest.h>

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
using ops::testing::StoredWeights;
using testing::OnCard;

constexpr float kUntouched = 12345.0f;

class GroupedPanels : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  int64_t block() const { return info(dtype()).block_values; }
  // How far a product of the weight rounded to halves may be from the exact one, of the sum of magnitudes.
  double most() const {
    const bool exact = dtype() == DType::kF16 || dtype() == DType::kBF16 || dtype() == DType::kF8E4M3;
    return exact ? 1e-6 : 6e-4;
  }
  float rounded(float value) const {
    const DType to = dtype() == DType::kBF16 ? DType::kBF16 : DType::kF16;
    return reference::code_to_float(to, reference::float_to_code(to, value));
  }

  // x_row: of which `far` times the numbers are given, as far out of F16's range as that is. rows_at_once: that the
  // scratch has room for, 0: all.
  void expect_products(const std::vector<int32_t>& offsets, int64_t rows, int64_t columns, bool with_bias,
                       float far = 1, int64_t rows_at_once = 0) {
    const auto num_groups = static_cast<int64_t>(offsets.size()) - 1;
    const int64_t used = quantised_row_bytes(dtype(), columns);
    const int64_t stride = (used + 15) / 16 * 16 + 16;
    const int64_t num_rows = offsets.back();
    std::vector<std::vector<float>> weights;
    std::vector<std::unique_ptr<OnCard<uint8_t>>> memory;
    std::vector<const uint8_t*> addresses;
    for (int64_t g = 0; g < num_groups; ++g) {
      const StoredWeights stored(dtype(), rows, columns, random_);
      weights.push_back(ops::testing::values_of(stored.view()));
      std::vector<uint8_t> bytes(static_cast<size_t>(rows * stride), 0xff);  // NaN between rows of numbers
      for (int64_t n = 0; n < rows; ++n) {
        std::memcpy(bytes.data() + n * stride, static_cast<const uint8_t*>(stored.view().data) + n * used,
                    static_cast<size_t>(used));
      }
      memory.push_back(std::make_unique<OnCard<uint8_t>>(bytes));
      addresses.push_back(memory.back()->data());
    }
    std::vector<float> x = random_.normals(num_rows * (columns + 3));
    for (float& value : x) value = rounded(value) * far;
    const std::vector<float> bias = random_.normals(num_groups * (rows + 1));
    const OnCard<const uint8_t*> card_addresses(addresses);
    const OnCard<int32_t> card_offsets(offsets);
    const OnCard<float> card_x(x);
    const OnCard<float> card_bias(bias);
    const OnCard<float> out(static_cast<size_t>(num_rows * (rows + 2)), kUntouched);
    const int64_t scratch_bytes = (rows_at_once == 0 ? num_rows : rows_at_once) * ((columns + 1023) / 1024 * 2048 + 4);
    const OnCard<uint8_t> scratch(static_cast<size_t>(scratch_bytes), uint8_t{0xff});
    multiply_grouped_tiles({.shape = {nullptr, dtype(), rows, columns, stride},
                            .weights = card_addresses.data(),
                            .num_groups = static_cast<int32_t>(num_groups),
                            .offsets = card_offsets.data(),
                            .num_rows = num_rows,
                            .x = card_x.data(),
                            .x_stride = columns + 3,
                            .bias = with_bias ? card_bias.data() : nullptr,
                            .bias_stride = rows + 1,
                            .out = out.data(),
                            .out_stride = rows + 2},
                           scratch.data(), scratch_bytes, nullptr);
    const std::vector<float> got = out.read();
    for (int64_t g = 0; g < num_groups; ++g) {
      for (int64_t m = offsets[static_cast<size_t>(g)]; m < offsets[static_cast<size_t>(g) + 1]; ++m) {
        const float* of_row = got.data() + m * (rows + 2);
        for (int64_t n = 0; n < rows; ++n) {
          double sum = with_bias ? bias[static_cast<size_t>(g * (rows + 1) + n)] : 0.0;
          double magnitude = std::fabs(sum);
          for (int64_t k = 0; k < columns; ++k) {
            const double each = double{x[static_cast<size_t>(m * (columns + 3) + k)]} *
                                weights[static_cast<size_t>(g)][static_cast<size_t>(n * columns + k)];
            sum += each;
            magnitude += std::fabs(each);
          }
          ASSERT_NEAR(of_row[n], sum, most() * magnitude + 2e-7 * far) << "group " << g << ", row " << m << ", " << n;
        }
        EXPECT_EQ(of_row[rows], kUntouched);
        EXPECT_EQ(of_row[rows + 1], kUntouched);
      }
    }
  }

  Random random_{29};
};

// Few rows a group on the mean: tiles of 64. Groups without rows, with one, with more than a tile.
TEST_P(GroupedPanels, MultiplyTilesOf64) {
  expect_products({0, 0, 1, 70, 70, 75}, 5, block() == 1 ? 72 : 3 * block(), true);
  expect_products({0, 64, 65, 65}, 130, 256, false);
}

// Many on the mean: tiles of 128; less than a step's columns, where blocks leave any.
TEST_P(GroupedPanels, MultiplyTilesOf128) {
  expect_products({0, 129, 130, 330}, 20, block() == 1 ? 8 : block(), false);
  expect_products({0, 130, 258}, 150, block() == 1 ? 136 : block() * 2, true);
}

// More columns than the threads that round a row of x keep.
TEST_P(GroupedPanels, MultiplyWideRows) {
  expect_products({0, 1, 4}, 3, 256 * 20, false);
}

TEST_P(GroupedPanels, MultiplyAsManyRowsAtOnceAsThereIsRoomFor) {
  expect_products({0, 10, 10, 75, 80}, 17, 256, true, 1, 20);
  expect_products({0, 3}, 9, 256, false, 1, 1);
}

TEST_P(GroupedPanels, RowsFarOutOfRangeAreDivided) {
  if (dtype() == DType::kF16) GTEST_SKIP() << "is rounded as the weight is";
  expect_products({0, 3, 20}, 9, 256, false, 0x1p30f);
}

INSTANTIATE_TEST_SUITE_P(Formats, GroupedPanels,
                         ::testing::Values(DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E4M3_128,
                                           DType::kF8E4M3_32, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                                           DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL,
                                           DType::kMXFP4, DType::kNVFP4, DType::kU4_32, DType::kU4_64, DType::kU4_128,
                                           DType::kU4_32_F32, DType::kI8_32, DType::kI8_128, DType::kI8_32_Z,
                                           DType::kNF4, DType::kFP4, DType::kU4_64_HZ, DType::kU4_32_FZ,
                                           DType::kI8_64_HZ),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace quire::ops::cuda
