// Products of many rows of experts by tensor cores of 8 bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

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
constexpr int64_t kPastX = 4;    // between rows of x
constexpr int64_t kPastOut = 2;  // and of what comes out

class GroupedCodes : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  int64_t columns_of_a_scale(int64_t columns) const { return dtype() == DType::kF8E4M3_128 ? kScaleColumns : columns; }

  // Rows that are codes times a power of two, the largest code among them: rounding them loses nothing.
  std::vector<float> exact_rows(int64_t num_rows, int64_t columns) {
    std::vector<float> x(static_cast<size_t>(num_rows * (columns + kPastX)), NAN);
    const int64_t together = columns_of_a_scale(columns);
    for (int64_t m = 0; m < num_rows; ++m) {
      float* row = x.data() + m * (columns + kPastX);
      for (int64_t k = 0; k < columns; ++k) {
        const int64_t block = k / together;
        const float scale = std::ldexp(1.0f, static_cast<int>((m * 5 + block * 3) % 7) - 3);
        const auto code = static_cast<uint16_t>(std::fabs(random_.normals(1)[0]) * 64);
        row[k] = reference::code_to_float(DType::kF8E4M3, code % 0x7f | (k % 2 == 0 ? 0x80 : 0)) * scale;
        if (k % together == (m + block) % together) row[k] = 448.0f * scale;
      }
    }
    return x;
  }

  // rows_at_once: 0: the scratch has room for all.
  void expect_products(const std::vector<int32_t>& offsets, int64_t rows, int64_t columns, bool with_bias,
                       int64_t rows_at_once = 0) {
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
    const std::vector<float> x = exact_rows(num_rows, columns);
    const std::vector<float> bias = random_.normals(num_groups * (rows + 1));
    const OnCard<const uint8_t*> card_addresses(addresses);
    const OnCard<int32_t> card_offsets(offsets);
    const OnCard<float> card_x(x);
    const OnCard<float> card_bias(bias);
    const OnCard<float> out(static_cast<size_t>(num_rows * (rows + kPastOut)), kUntouched);
    const int64_t scratch_bytes = (rows_at_once == 0 ? num_rows : rows_at_once) * used;
    const OnCard<uint8_t> scratch(static_cast<size_t>(scratch_bytes), uint8_t{0xff});
    ASSERT_TRUE(multiply_grouped_codes({.shape = {nullptr, dtype(), rows, columns, stride},
                                        .weights = card_addresses.data(),
                                        .num_groups = static_cast<int32_t>(num_groups),
                                        .offsets = card_offsets.data(),
                                        .num_rows = num_rows,
                                        .x = card_x.data(),
                                        .x_stride = columns + kPastX,
                                        .bias = with_bias ? card_bias.data() : nullptr,
                                        .bias_stride = rows + 1,
                                        .out = out.data(),
                                        .out_stride = rows + kPastOut},
                                       scratch.data(), scratch_bytes, nullptr));
    const std::vector<float> got = out.read();
    for (int64_t g = 0; g < num_groups; ++g) {
      for (int64_t m = offsets[static_cast<size_t>(g)]; m < offsets[static_cast<size_t>(g) + 1]; ++m) {
        const float* of_row = got.data() + m * (rows + kPastOut);
        for (int64_t n = 0; n < rows; ++n) {
          double sum = with_bias ? bias[static_cast<size_t>(g * (rows + 1) + n)] : 0.0;
          double magnitude = std::fabs(sum);
          for (int64_t k = 0; k < columns; ++k) {
            const double each = double{x[static_cast<size_t>(m * (columns + kPastX) + k)]} *
                                weights[static_cast<size_t>(g)][static_cast<size_t>(n * columns + k)];
            sum += each;
            magnitude += std::fabs(each);
          }
          ASSERT_NEAR(of_row[n], sum, 1e-6 * magnitude) << "group " << g << ", row " << m << ", " << n;
        }
        for (int64_t n = rows; n < rows + kPastOut; ++n) EXPECT_EQ(of_row[n], kUntouched);
      }
    }
  }

  Random random_{31};
};

// Few rows a group on the mean: tiles of 64. Groups without rows, with one, with more than a tile; a step to five.
TEST_P(GroupedCodes, MultiplyTilesOf64) {
  expect_products({0, 0, 1, 70, 70, 75}, 5, 128, true);
  expect_products({0, 64, 65, 65}, 130, 256, false);
  expect_products({0, 9}, 128, 384, false);
  expect_products({0, 3, 20}, 65, 640, true);
}

// Many on the mean: tiles of 128.
TEST_P(GroupedCodes, MultiplyTilesOf128) {
  expect_products({0, 129, 130, 330}, 20, 128, false);
  expect_products({0, 130, 258}, 150, 512, true);
}

TEST_P(GroupedCodes, MultiplyAsManyRowsAtOnceAsThereIsRoomFor) {
  expect_products({0, 10, 10, 75, 80}, 17, 256, true, 23);
  expect_products({0, 200}, 9, 128, false, 1);
}

TEST_P(GroupedCodes, RowsEndWithinAStep) {
  if (dtype() != DType::kF8E4M3) GTEST_SKIP() << "has whole steps";
  expect_products({0, 3, 12}, 10, 16, true);
  expect_products({0, 3, 12}, 10, 144, false);
  expect_products({0, 150}, 3, 496, false);
}

// What is left to other kernels, of whose arguments none is read.
TEST_P(GroupedCodes, LeaveOtherShapesToOthers) {
  const int64_t odd = dtype() == DType::kF8E4M3 ? 24 : 192;
  EXPECT_FALSE(multiply_grouped_codes({.shape = {nullptr, dtype(), 5, odd, 1024}}, nullptr, 0, nullptr));
  EXPECT_FALSE(multiply_grouped_codes({.shape = {nullptr, DType::kQ8_0, 5, 128, 1024}}, nullptr, 0, nullptr));
  EXPECT_FALSE(
      multiply_grouped_codes({.shape = {nullptr, dtype(), 5, 128, 1024}, .x_group_stride = 128}, nullptr, 0, nullptr));
}

INSTANTIATE_TEST_SUITE_P(Formats, GroupedCodes, ::testing::Values(DType::kF8E4M3, DType::kF8E4M3_128),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace quire::ops::cuda
