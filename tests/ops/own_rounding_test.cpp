// Rows of activations that a checkpoint says are rounded to whole numbers (compressed-tensors' W8A8).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/input_form.h"
#include "tests/ops/ops_test_support.h"

namespace quire::ops {
namespace {

using testing::kCpuIsas;
using testing::largest_difference;
using testing::Random;
using testing::same_bits;
using testing::StoredWeights;

std::vector<float> rows_times(Backend& backend, const PackedMatrix& weight, const std::vector<float>& x,
                              int64_t first_row, int64_t num_rows) {
  std::vector<float> out(static_cast<size_t>(num_rows * weight.rows()));
  backend(LinearArgs{.x = x.data() + first_row * weight.columns(),
                     .x_stride = weight.columns(),
                     .num_rows = num_rows,
                     .weight = &weight,
                     .out = out.data(),
                     .out_stride = weight.rows()});
  return out;
}

std::unique_ptr<PackedMatrix> packed_alone(Backend& backend, const StoredWeights& stored) {
  const TensorView view = stored.view();
  auto matrix = backend.pack(std::span(&view, 1));
  EXPECT_TRUE(matrix.ok()) << matrix.status().message();
  return std::move(matrix).value();
}

std::vector<float> in_doubles(const StoredWeights& stored, const std::vector<float>& x, int64_t num_rows) {
  const std::vector<float> values = testing::values_of(stored.view());
  const int64_t n = stored.view().shape[0];
  const int64_t k = stored.view().shape[1];
  std::vector<float> out;
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t column = 0; column < n; ++column) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i)
        sum += double{x[static_cast<size_t>(row * k + i)]} * double{values[static_cast<size_t>(column * k + i)]};
      out.push_back(static_cast<float>(sum));
    }
  }
  return out;
}

// Rows that a checkpoint says are rounded to whole numbers: the product is of exactly those, whatever else
// --activation-dtype says of rows, and on every instruction set.
struct OwnRoundingCase {
  std::string isa;
  DType dtype;
  int64_t group;
  float scale;
};

class OwnRoundingTest : public ::testing::TestWithParam<OwnRoundingCase> {};

TEST_P(OwnRoundingTest, TheProductIsOfTheNumbersThatTheCheckpointSays) {
  const OwnRoundingCase& one = GetParam();
  Random random(11);
  const int64_t k = 384;
  const int64_t n = 40;
  const StoredWeights stored(one.dtype, n, k, random);
  const InputForm form{.rounding = RowRounding::kInt8, .scale = one.scale, .group = one.group};
  for (const ActivationDType activations :
       {ActivationDType::kAuto, ActivationDType::kInt16, ActivationDType::kFloat32}) {
    auto backend = testing::make_backend(one.isa, 2, activations);
    if (backend == nullptr) GTEST_SKIP() << "this machine lacks " << one.isa;
    const auto weight = packed_alone(*backend, stored);
    weight->set_input(form);
    const std::vector<float> x = random.normals(13 * k);
    std::vector<float> formed(x.size());
    for (size_t row = 0; row < 13; ++row) form_input(form, x.data() + row * k, k, formed.data() + row * k);
    const std::vector<float> all = rows_times(*backend, *weight, x, 0, 13);
    EXPECT_LT(largest_difference(all, in_doubles(stored, formed, 13)), 5e-5) << static_cast<int>(activations);
    for (int64_t row = 0; row < 13; ++row) {
      const std::vector<float> alone = rows_times(*backend, *weight, x, row, 1);
      EXPECT_TRUE(same_bits(alone.data(), all.data() + row * n, n)) << "row " << row;
    }
  }
}

TEST_P(OwnRoundingTest, ZerosGiveNothingAndNanSpoilsItsRowAlone) {
  const OwnRoundingCase& one = GetParam();
  auto backend = testing::make_backend(one.isa, 2, ActivationDType::kAuto);
  if (backend == nullptr) GTEST_SKIP() << "this machine lacks " << one.isa;
  Random random(12);
  const int64_t k = 384;
  const StoredWeights stored(one.dtype, 20, k, random);
  const auto weight = packed_alone(*backend, stored);
  weight->set_input({.rounding = RowRounding::kInt8, .scale = one.scale, .group = one.group});
  std::vector<float> x = random.normals(3 * k);
  std::fill_n(x.begin(), k, 0.0f);
  const std::vector<float> before = rows_times(*backend, *weight, x, 0, 3);
  EXPECT_EQ(std::vector<float>(before.begin(), before.begin() + 20), std::vector<float>(20, 0.0f));
  x[static_cast<size_t>(k + 77)] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> after = rows_times(*backend, *weight, x, 0, 3);
  EXPECT_TRUE(same_bits(after.data(), before.data(), 20));
  EXPECT_TRUE(same_bits(after.data() + 40, before.data() + 40, 20));
  for (size_t i = 20; i < 40; ++i) EXPECT_TRUE(std::isnan(after[i])) << after[i];
}

std::vector<OwnRoundingCase> own_rounding_cases() {
  std::vector<OwnRoundingCase> cases;
  for (const std::string& isa : kCpuIsas) {
    for (const DType dtype :
         {DType::kQ8_0, DType::kI8_32, DType::kI8_128, DType::kI8_32_Z, DType::kU4_64, DType::kI8_64_HZ}) {
      for (const int64_t group : {0, 32, 128}) cases.push_back({isa, dtype, group, 0.0f});
      cases.push_back({isa, dtype, 0, 0.02f});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Isa, OwnRoundingTest, ::testing::ValuesIn(own_rounding_cases()), [](const auto& test) {
  return test.param.isa + "_" + std::string(name(test.param.dtype)) + "_" + std::to_string(test.param.group) +
         (test.param.scale > 0 ? "_stored" : "_own");
});

}  // namespace
}  // namespace quire::ops
