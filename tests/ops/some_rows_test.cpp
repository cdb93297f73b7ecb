// Products of some rows as a card makes them where inputs may be rounded: each stored format, from one row to more than
// its tensor cores take together.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/reference/reference_backend.h"
#include "tensor/stored_values.h"
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

// Products that have a scale a row and are multiplied by it on the way, and of long rows afterwards; inputs and outputs
// of 32 and of 16 bits.
TEST(RowsOfEightBitFloats, AreAsNearAsTheirCodes_cuda) {
  const auto backend = testing::make_backend("cuda");
  if (backend == nullptr) GTEST_SKIP() << "this machine lacks cuda";
  Random random(38);
  constexpr int64_t kOutputs = 48;
  for (const int64_t columns : {768, 8448}) {
    const StoredWeights stored(DType::kF8E4M3, kOutputs, columns, random);
    const TensorView view = stored.view();
    const std::vector<float> values = testing::values_of(view);
    const auto weight = backend->pack({&view, 1}).value();
    const std::vector<float> bias = random.normals(kOutputs);
    for (const int64_t rows : {33, 70}) {
      std::vector<uint16_t> halves(static_cast<size_t>(rows * columns));
      std::vector<float> x = random.normals(rows * columns);
      for (size_t i = 0; i < x.size(); ++i) {
        halves[i] = float_to_bfloat16(x[i]);
        x[i] = bfloat16_to_float(halves[i]);
      }
      EXPECT_EQ(backend->input_dtype(*weight, rows), columns > 8192 ? DType::kBF16 : DType::kF8E4M3)
          << "it is not multiplied in 8 bits";
      for (const bool is_short : {false, true}) {
        std::vector<float> out(static_cast<size_t>(rows * kOutputs));
        std::vector<uint16_t> short_out(out.size());
        LinearArgs args{.x = x.data(),
                        .x_stride = columns,
                        .num_rows = rows,
                        .weight = weight.get(),
                        .bias = bias.data(),
                        .out = out.data(),
                        .out_stride = kOutputs};
        if (is_short) {
          args.x = {halves.data(), DType::kBF16};
          args.out = {short_out.data(), DType::kBF16};
        }
        (*backend)(args);
        if (is_short) std::transform(short_out.begin(), short_out.end(), out.begin(), bfloat16_to_float);
        double error = 0;
        double size = 0;
        for (int64_t m = 0; m < rows; ++m) {
          for (int64_t n = 0; n < kOutputs; ++n) {
            double sum = bias[static_cast<size_t>(n)];
            for (int64_t k = 0; k < columns; ++k)
              sum += double{x[static_cast<size_t>(m * columns + k)]} * values[static_cast<size_t>(n * columns + k)];
            const double off = out[static_cast<size_t>(m * kOutputs + n)] - sum;
            error += off * off;
            size += sum * sum;
          }
        }
        // E4M3 has four digits: a number is off by 2.6 % of itself on the mean, and so is a sum of many of its size.
        EXPECT_LT(std::sqrt(error / size), 0.035) << rows << " rows of " << columns;
        EXPECT_GT(std::sqrt(error / size), 0.015) << "x was not rounded to 8 bits";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SomeRows,
                         ::testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E4M3_128,
                                           DType::kF8E4M3_32, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                                           DType::kQ8_0, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K,
                                           DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4, DType::kNVFP4,
                                           DType::kU4_32, DType::kU4_64, DType::kU4_128, DType::kU4_32_F32,
                                           DType::kI8_32, DType::kI8_128, DType::kI8_32_Z, DType::kNF4, DType::kFP4,
                                           DType::kU4_64_HZ, DType::kU4_32_FZ, DType::kI8_64_HZ),
                         [](const auto& test) { return "cuda_" + std::string(name(test.param)); });

}  // namespace
}  // namespace quire::ops
