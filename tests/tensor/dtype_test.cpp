#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tensor/tensor.h"

namespace quire {
namespace {

TEST(DType, EveryTypeHasANameOfItsOwnAndASize) {
  std::set<std::string_view> names;
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_TRUE(names.insert(name(dtype)).second) << name(dtype) << " twice";
    EXPECT_NE(name(dtype), "?") << "type " << i;
    EXPECT_GT(info(dtype).block_bytes, 0);
    EXPECT_GT(info(dtype).block_values, 0);
  }
}

TEST(DType, ARowTakesTheBytesOfItsValues) {
  EXPECT_EQ(row_bytes(DType::kF32, 10), 40);
  EXPECT_EQ(row_bytes(DType::kBF16, 10), 20);
  EXPECT_EQ(row_bytes(DType::kF16, 10), 20);
  EXPECT_EQ(row_bytes(DType::kI8, 10), 10);
  EXPECT_EQ(row_bytes(DType::kF8E4M3, 7), 7);
  EXPECT_EQ(row_bytes(DType::kF8E5M2, 7), 7);
  EXPECT_EQ(row_bytes(DType::kI64, 3), 24);
  EXPECT_EQ(row_bytes(DType::kQ4_0, 64), 36);
  EXPECT_EQ(row_bytes(DType::kQ4_1, 64), 40);
  EXPECT_EQ(row_bytes(DType::kQ8_0, 64), 68);
  EXPECT_EQ(row_bytes(DType::kQ5_0, 64), 44);
  EXPECT_EQ(row_bytes(DType::kQ5_1, 64), 48);
  EXPECT_EQ(row_bytes(DType::kIQ4_NL, 64), 36);
  EXPECT_EQ(row_bytes(DType::kQ2_K, 512), 168);
  EXPECT_EQ(row_bytes(DType::kQ3_K, 512), 220);
  EXPECT_EQ(row_bytes(DType::kQ4_K, 512), 288);
  EXPECT_EQ(row_bytes(DType::kQ5_K, 512), 352);
  EXPECT_EQ(row_bytes(DType::kQ6_K, 512), 420);
  EXPECT_EQ(row_bytes(DType::kIQ4_XS, 512), 272);
  EXPECT_EQ(row_bytes(DType::kMXFP4, 64), 34);
  EXPECT_EQ(row_bytes(DType::kNVFP4, 128), 72);
  EXPECT_EQ(row_bytes(DType::kIQ1_S, 512), 100);
  EXPECT_EQ(row_bytes(DType::kIQ1_M, 512), 112);
  EXPECT_EQ(row_bytes(DType::kIQ2_XXS, 512), 132);
  EXPECT_EQ(row_bytes(DType::kIQ2_XS, 512), 148);
  EXPECT_EQ(row_bytes(DType::kIQ2_S, 512), 164);
  EXPECT_EQ(row_bytes(DType::kIQ3_XXS, 512), 196);
  EXPECT_EQ(row_bytes(DType::kIQ3_S, 512), 220);
  EXPECT_EQ(row_bytes(DType::kTQ1_0, 512), 108);
  EXPECT_EQ(row_bytes(DType::kTQ2_0, 512), 132);
  EXPECT_EQ(row_bytes(DType::kQ8_K, 512), 584);
}

TEST(TensorView, TakesTheBytesOfItsRows) {
  EXPECT_EQ((TensorView{nullptr, DType::kF8E4M3, Shape{3, 5}}.bytes()), 15);
  EXPECT_EQ((TensorView{nullptr, DType::kQ4_1, Shape{2, 3, 32}}.bytes()), 120);
  EXPECT_EQ((TensorView{nullptr, DType::kF32, Shape{4, 0}}.bytes()), 0);
  EXPECT_EQ((TensorView{nullptr, DType::kF16, Shape{}}.bytes()), 2);
}

}  // namespace
}  // namespace quire
