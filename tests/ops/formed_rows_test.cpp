// Products with weights whose inputs come in another order, or times a factor, by every backend that heeds it.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/ops/ops_test_support.h"

namespace quire::ops {
namespace {

using testing::largest_difference;
using testing::Random;
using testing::StoredWeights;

class FormedRows : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    backend_ = testing::make_backend(GetParam(), 2, ActivationDType::kFloat32);
    if (backend_ == nullptr) GTEST_SKIP() << "this machine lacks " << GetParam();
  }
  std::unique_ptr<PackedMatrix> packed(const StoredWeights& stored) {
    const TensorView view = stored.view();
    return backend_->pack({&view, 1}).value();
  }
  std::unique_ptr<Backend> backend_;
};

TEST_P(FormedRows, AWeightHasItsInputsInItsOrder) {
  Random random(31);
  constexpr int64_t kRows = 70;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kU4_128, DType::kNVFP4}) {
    const int64_t columns = 384;
    const StoredWeights stored(dtype, kRows, columns, random);
    const auto plain = packed(stored);
    const auto formed = packed(stored);
    auto order = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(columns));
    std::iota(order->begin(), order->end(), 0);
    for (size_t i = order->size(); i > 1; --i)
      std::swap((*order)[i - 1], (*order)[static_cast<size_t>(random.between(0, static_cast<int64_t>(i) - 1))]);
    const InputForm form{.order = order, .factor = 0.25f};
    ASSERT_EQ(backend_->heeded(form, /*in_group=*/false), form);
    ASSERT_TRUE(backend_->set_input(*formed, form).ok());
    for (const int64_t num_rows : {1, 5, 40, 100}) {
      const int64_t stride = columns + 8;
      const std::vector<float> x = random.normals(num_rows * stride);
      const std::vector<float> bias = random.normals(kRows);
      std::vector<float> in_order;
      for (int64_t row = 0; row < num_rows; ++row) {
        for (const int32_t i : *order) in_order.push_back(0.25f * x[static_cast<size_t>(row * stride + i)]);
      }
      std::vector<float> got(static_cast<size_t>(num_rows * kRows));
      std::vector<float> expected = got;
      (*backend_)(LinearArgs{.x = x.data(),
                             .x_stride = stride,
                             .num_rows = num_rows,
                             .weight = formed.get(),
                             .bias = bias.data(),
                             .out = got.data(),
                             .out_stride = kRows});
      (*backend_)(LinearArgs{.x = in_order.data(),
                             .x_stride = columns,
                             .num_rows = num_rows,
                             .weight = plain.get(),
                             .bias = bias.data(),
                             .out = expected.data(),
                             .out_stride = kRows});
      EXPECT_EQ(got, expected) << name(dtype) << ", " << num_rows << " rows";
    }
  }
}

TEST_P(FormedRows, EachWeightOfAGroupHasItsFactor) {
  Random random(32);
  constexpr int64_t kRows = 40;
  const int64_t columns = 256;
  const std::vector<float> factors = {0.5f, 1, 3};
  const std::vector<int32_t> offsets = {0, 2, 2, 50};
  for (const DType dtype : {DType::kF32, DType::kU4_64, DType::kNVFP4}) {
    std::vector<std::unique_ptr<PackedMatrix>> plain, formed;
    std::vector<const PackedMatrix*> pointers;
    for (const float factor : factors) {
      const StoredWeights stored(dtype, kRows, columns, random);
      plain.push_back(packed(stored));
      formed.push_back(packed(stored));
      const InputForm form{.factor = factor};
      ASSERT_EQ(backend_->heeded(form, /*in_group=*/true), form);
      ASSERT_TRUE(backend_->set_input(*formed.back(), form).ok());
      pointers.push_back(formed.back().get());
    }
    const auto group = backend_->group(pointers);
    for (const bool has_bias : {false, true}) {
      const std::vector<float> x = random.normals(offsets.back() * columns);
      const std::vector<float> bias = random.normals(3 * kRows);
      std::vector<float> got(static_cast<size_t>(offsets.back() * kRows));
      std::vector<float> expected = got;
      (*backend_)(GroupedLinearArgs{.x = x.data(),
                                    .x_stride = columns,
                                    .offsets = offsets.data(),
                                    .num_rows = offsets.back(),
                                    .weights = group.get(),
                                    .bias = has_bias ? bias.data() : nullptr,
                                    .bias_stride = kRows,
                                    .out = got.data(),
                                    .out_stride = kRows});
      for (size_t g = 0; g < 3; ++g) {
        const int64_t first = offsets[g];
        std::vector<float> times(x.begin() + first * columns, x.begin() + offsets[g + 1] * columns);
        for (float& number : times) number *= factors[g];
        (*backend_)(LinearArgs{.x = times.data(),
                               .x_stride = columns,
                               .num_rows = offsets[g + 1] - first,
                               .weight = plain[g].get(),
                               .bias = has_bias ? bias.data() + static_cast<int64_t>(g) * kRows : nullptr,
                               .out = expected.data() + first * kRows,
                               .out_stride = kRows});
      }
      // Of a card many rows of a group are another kernel's.
      EXPECT_LT(largest_difference(got, expected), testing::is_card(GetParam()) ? 2e-2 : 1e-5) << name(dtype);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, FormedRows, ::testing::ValuesIn(testing::kDevices),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::ops
