// Products of some rows as a card makes them where inputs may be rounded: each stored format, from one row to more than
// its tensor cores take together.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/reference/reference_backend.h"
#include "tests/ops/ops_test_support.h"

namespace quire::ops {
namespace {

using testing::Random;
using testing::StoredWeights;

class SomeRows : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (backend_ == nullptr) GTEST_SKIP() << "this machine lacks cuda";
  }
  std::unique_ptr<Backend> backend_ = testing::make_backend("cuda");
};

TEST_P(SomeRows, AreAsNearAsTheirRoundingLeavesThem) {
  Random random(37);
  // Weights and inputs are rounded to 11 digits, BF16 to 8, 8-bit floats to 4.
  const double most = GetParam() == DType::kBF16                                         ? 6e-3
                      : GetParam() == DType::kF8E4M3 || GetParam() == DType::kF8E4M3_128 ? 6e-2
                                                                                         : 1e-3;
  const int64_t columns = 768;
  for (const int64_t outputs : {5, 150}) {
    const StoredWeights stored(GetParam(), outputs, columns, random);
    const TensorView view = stored.view();
    const std::vector<float> values = testing::values_of(view);
    const auto weight = backend_->pack({&view, 1}).value();
    const std::vector<float> bias = random.normals(outputs);
    for (const int64_t rows : {1, 2, 3, 8, 9, 16, 17, 33, 64, 70}) {
      const std::vector<float> x = random.normals(rows * columns);
      std::vector<float> out(static_cast<size_t>(rows * outputs));
      (*backend_)(LinearArgs{.x = x.data(),
                             .x_stride = columns,
                             .num_rows = rows,
                             .weight = weight.get(),
                             .bias = bias.data(),
                             .out = out.data(),
                             .out_stride = outputs});
      for (int64_t m = 0; m < rows; ++m) {
        for (int64_t n = 0; n < outputs; ++n) {
          double sum = bias[static_cast<size_t>(n)];
          double magnitude = std::fabs(sum);
          for (int64_t k = 0; k < columns; ++k) {
            const double each =
                double{x[static_cast<size_t>(m * columns + k)]} * values[static_cast<size_t>(n * columns + k)];
            sum += each;
            magnitude += std::fabs(each);
          }
          ASSERT_NEAR(out[static_cast<size_t>(m * outputs + n)], sum, most * magnitude)
              << "row " << m << " of " << rows << ", output " << n << " of " << outputs;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SomeRows,
                         ::testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E4M3_128,
                                           DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                                           DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,
                                           DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4),
                         [](const auto& test) { return "cuda_" + std::string(name(test.param)); });

}  // namespace
}  // namespace quire::ops
