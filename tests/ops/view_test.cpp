// Views of numbers: parts of parts, and what they refuse.
#include "ops/view.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace quire::ops {
namespace {

TEST(View, RowsAndColumnsAreCutOutWithoutACopy) {
  std::vector<float> numbers(6 * 10);
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  const View whole(numbers.data(), 6, 10);
  EXPECT_TRUE(whole.is_dense());
  const View part = whole.columns(2, 5).rows(1, 4).columns(1, 3);
  EXPECT_EQ(part.num_rows, 4);
  EXPECT_EQ(part.num_columns, 3);
  EXPECT_EQ(part.row_stride, 10);
  EXPECT_EQ(part.strided_floats(), numbers.data() + 10 + 3);
  EXPECT_FALSE(part.is_dense());
  EXPECT_TRUE(part.rows(3, 1).is_dense()) << "a single row";
  const ConstView read = part;
  EXPECT_EQ(read.strided_floats(), part.strided_floats());
  EXPECT_EQ(read.row_stride, 10);
}

TEST(View, NumbersOf16BitsLieCloser) {
  std::vector<float> numbers(4 * 8);
  const View halves = View(numbers.data(), 4, 8).as(DType::kBF16);
  EXPECT_EQ(halves.rows(1, 1).columns(2, 1).data, reinterpret_cast<uint8_t*>(numbers.data()) + 2 * (8 + 2));
}

TEST(View, OfNothingHasPartsOfNothing) {
  EXPECT_EQ(View(nullptr, 4, 8).rows(2, 2).columns(3, 1).data, nullptr);
}

TEST(View, WhatIsNotThereIsAFault) {
  std::vector<float> numbers(4 * 8);
  const View view(numbers.data(), 4, 8);
  EXPECT_DEATH((void)view.rows(3, 2), "");
  EXPECT_DEATH((void)view.columns(-1, 2), "");
  EXPECT_DEATH((void)view.columns(2, 2).floats(), "is_dense");
  EXPECT_DEATH((void)view.as(DType::kF16).strided_floats(), "kF32");
  EXPECT_DEATH((void)view.as(DType::kF16).as(DType::kF32), "row_bytes");
}

}  // namespace
}  // namespace quire::ops
