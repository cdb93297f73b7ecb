// Products of many rows of experts by tensor cores of 16 bits.
#include <gtest/gtest.h>

#include <utility>

#include "ops/cuda/kernels.h"
#include "ops/reference/kv_values.h"
#include "tests/ops_cuda/grouped_products.h"

namespace quire::ops::cuda {
namespace {

using ops::testing::Random;
using testing::GroupedProduct;
using testing::GroupsOnCard;
using testing::OnCard;

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

  // far: x is so many times as large, and as far out of the range of F16 as that is. rows_at_once: that the
  // scratch has room for, 0: all.
  void expect_products(const std::vector<int32_t>& offsets, int64_t rows, int64_t columns, bool with_bias,
                       float far = 1, int64_t rows_at_once = 0) {
    const auto num_groups = static_cast<int64_t>(offsets.size()) - 1;
    const GroupsOnCard groups(dtype(), num_groups, rows, columns, random_);
    std::vector<float> x = random_.normals(offsets.back() * (columns + 3));
    for (float& value : x) value = rounded(value) * far;
    const GroupedProduct product{.groups = groups,
                                 .offsets = offsets,
                                 .x = std::move(x),
                                 .x_stride = columns + 3,
                                 .bias = with_bias ? random_.normals(num_groups * (rows + 1)) : std::vector<float>()};
    const int64_t scratch_bytes =
        (rows_at_once == 0 ? offsets.back() : rows_at_once) * ((columns + 1023) / 1024 * 2048 + 4);
    const OnCard<uint8_t> scratch(static_cast<size_t>(scratch_bytes), uint8_t{0xff});
    product.expect(most(), 2e-7 * far, [&](const GroupedRowsWork& work) {
      multiply_grouped_tiles(work, scratch.data(), scratch_bytes, nullptr);
    });
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
