// Products of many rows of experts by tensor cores of 8 bits.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/cuda/kernels.h"
#include "ops/quantise.h"
#include "ops/reference/kv_values.h"
#include "tests/ops_cuda/grouped_products.h"

namespace quire::ops::cuda {
namespace {

using ops::testing::Random;
using testing::GroupedProduct;
using testing::GroupsOnCard;
using testing::OnCard;

constexpr int64_t kPastX = 4;  // between rows of x

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
    const GroupsOnCard groups(dtype(), num_groups, rows, columns, random_);
    const GroupedProduct product{.groups = groups,
                                 .offsets = offsets,
                                 .x = exact_rows(offsets.back(), columns),
                                 .x_stride = columns + kPastX,
                                 .bias = with_bias ? random_.normals(num_groups * (rows + 1)) : std::vector<float>()};
    const int64_t scratch_bytes =
        (rows_at_once == 0 ? offsets.back() : rows_at_once) * quantised_row_bytes(dtype(), columns);
    const OnCard<uint8_t> scratch(static_cast<size_t>(scratch_bytes), uint8_t{0xff});
    product.expect(1e-6, 0, [&](const GroupedRowsWork& work) {
      ASSERT_TRUE(multiply_grouped_codes(work, scratch.data(), scratch_bytes, nullptr));
    });
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
