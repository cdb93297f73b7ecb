// What rows become before they meet a weight, against the definitions of the formats that say so.
#include "ops/input_form.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/ops/ops_test_support.h"

namespace quire::ops {
namespace {

std::vector<float> formed(const InputForm& form, const std::vector<float>& x) {
  std::vector<float> out(x.size());
  form_input(form, x.data(), static_cast<int64_t>(x.size()), out.data());
  return out;
}

TEST(InputForms, AnOrderComesBeforeAFactor) {
  const InputForm form{.order = std::make_shared<std::vector<int32_t>>(std::vector<int32_t>{2, 0, 1}), .factor = 0.5f};
  EXPECT_EQ(formed(form, {1, 2, 3}), (std::vector<float>{1.5f, 0.5f, 1}));
  EXPECT_FALSE(form.is_plain());
  EXPECT_TRUE(InputForm{}.is_plain());
  InputForm same = form;
  same.order = std::make_shared<std::vector<int32_t>>(*form.order);
  EXPECT_EQ(form, same);
  same.order = nullptr;
  EXPECT_FALSE(form == same);
}

TEST(InputForms, WholeNumbersAreTheNearestOfARowsOwnSteps) {
  testing::Random random(5);
  const std::vector<float> x = random.normals(96);
  float most = 0;
  for (const float number : x) most = std::max(most, std::fabs(number));
  const float step = most / 127.5f;
  const std::vector<float> out = formed({.rounding = RowRounding::kInt8}, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const float expected = std::clamp(std::nearbyint(x[i] / step), -128.0f, 127.0f) * step;
    EXPECT_FLOAT_EQ(out[i], expected);
  }
  EXPECT_EQ(formed({.rounding = RowRounding::kInt8}, std::vector<float>(8)), std::vector<float>(8));
}

TEST(InputForms, ARangeHasAZeroPoint) {
  const std::vector<float> x = {-1, 0, 0.5f, 4.1f};
  const float step = 5.1f / 255;
  const float zero = std::nearbyint(-128 + 1 / step);
  const std::vector<float> out = formed({.rounding = RowRounding::kInt8Range}, x);
  for (size_t i = 0; i < x.size(); ++i)
    EXPECT_FLOAT_EQ(out[i], (std::clamp(std::nearbyint(x[i] / step + zero), -128.0f, 127.0f) - zero) * step);
  EXPECT_EQ(out[1], 0);
}

TEST(InputForms, FloatsOfEightBitsAreTheNearestOnes) {
  // Of a stored scale of 1: between 1 and 1.125, ties to the even one; the largest; those without an exponent.
  const InputForm form{.rounding = RowRounding::kFloat8, .scale = 1};
  const std::vector<float> x = {1.0625f, 1.1875f, -1.07f, 1000.0f, 0x1p-10f, 0x1.8p-9f, 0x1.01p-10f, 0.0f};
  EXPECT_EQ(formed(form, x), (std::vector<float>{1.0f, 1.25f, -1.125f, 448.0f, 0.0f, 0x1p-8f, 0x1p-9f, 0.0f}));
  // Groups have scales of their own.
  const std::vector<float> out = formed({.rounding = RowRounding::kFloat8, .group = 2}, {448, 1, 4.48f, 0.01f});
  EXPECT_EQ(out[0], 448);
  EXPECT_EQ(out[1], 1);
  EXPECT_FLOAT_EQ(out[2], 4.48f);
}

TEST(InputForms, OutliersStayAndAreNotTheLargest) {
  const InputForm form{.rounding = RowRounding::kInt8Outliers, .threshold = 6};
  const std::vector<float> out = formed(form, {8.0f, 2.0f, -1.0f, 0.013f, 6.0f});
  EXPECT_EQ(out[0], 8.0f);
  EXPECT_EQ(out[4], 6.0f);
  EXPECT_FLOAT_EQ(out[1], 2.0f);
  EXPECT_FLOAT_EQ(out[2], -64 * (2.0f / 127));  // 63.5, ties to even
  EXPECT_FLOAT_EQ(out[3], 1 * (2.0f / 127));
}

TEST(InputForms, HalvesOfTheLargestAreRoundedAsTheLibraryDoes) {
  // Numbers of float16: a half of the largest is 63.5 steps, and the last bit of 127 / largest decides.
  const InputForm form{.rounding = RowRounding::kInt8Outliers, .threshold = 6};
  const float largest = 2.56640625f;
  const std::vector<float> out = formed(form, {largest, -largest / 2, 0.0f, 1.0f});
  EXPECT_FLOAT_EQ(out[1], -64 * (largest / 127));
}

TEST(InputForms, FloatsOfFourBitsHaveScalesOfEight) {
  const InputForm form{.rounding = RowRounding::kFloat4, .scale = 1, .group = 4};
  // A largest of 6 makes a scale of 1: halves, whole numbers and even ones, ties to even codes.
  EXPECT_EQ(formed(form, {6, 0.25f, 2.5f, -5.0f, 12, 0.5f, 7.0f, 0}), (std::vector<float>{6, 0, 2, -4, 12, 0, 8, 0}));
}

TEST(InputForms, FloatsOfFourBitsInMxGroupsHaveExponents) {
  const InputForm form{.rounding = RowRounding::kMxFloat4, .group = 4};
  // A largest of 6 to less than 7 has a scale of 1; of 7, which is nearer to 8, one of 2; ties to even codes.
  EXPECT_EQ(formed(form, {6.9f, 0.25f, 2.5f, -5.0f, -7.0f, 0.5f, 1.1f, 3.0f}),
            (std::vector<float>{6, 0, 2, -4, -8, 0, 1, 3}));
  EXPECT_EQ(formed(form, {0, 0, 0, 0}), (std::vector<float>{0, 0, 0, 0}));
}

TEST(InputForms, FloatsOfEightBitsInMxGroupsHaveTheSameExponents) {
  const InputForm form{.rounding = RowRounding::kMxFloat8, .group = 4};
  // A largest of 1.7 has 2^0, whose smallest codes are steps of 2^-17; of 1.8, nearer to 2, twice that; ties to even
  // codes.
  EXPECT_EQ(formed(form, {1.7f, 0.5f, -0x1p-18f, 0x1.8p-17f, 1.8f, 0x1p-17f, 0x1.8p-16f, -1.0625f}),
            (std::vector<float>{1.75f, 0.5f, 0, 0x1p-16f, 1.75f, 0, 0x1p-15f, -1.0f}));
  EXPECT_EQ(formed(form, {0, 0, 0, 0}), (std::vector<float>{0, 0, 0, 0}));
}

}  // namespace
}  // namespace quire::ops
