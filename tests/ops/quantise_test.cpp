// Weights rounded while they are packed: how far they end from what was stored, read back through products with unit
// vectors and compared with plain arithmetic of this file's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/reference/reference_backend.h"
#include "tests/ops/ops_test_support.h"

namespace quire::ops {
namespace {

using testing::kCpuIsas;
using testing::Random;

// float32 activations, so that a product with unit vectors is the weight itself.
std::unique_ptr<Backend> exact_backend(const std::string& isa, int threads = 2) {
  return isa == "reference" ? make_reference_backend() : testing::make_backend(isa, threads, ActivationDType::kFloat32);
}

TensorView view_of(const std::vector<float>& values, int64_t columns) {
  return {values.data(), DType::kF32, Shape{static_cast<int64_t>(values.size()) / columns, columns}};
}

std::unique_ptr<PackedMatrix> quantised(Backend& backend, std::span<const TensorView> parts, DType dtype) {
  auto matrix = backend.quantise(parts, dtype);
  EXPECT_TRUE(matrix.ok()) << matrix.status().message();
  EXPECT_EQ((*matrix)->dtype(), dtype);
  EXPECT_EQ((*matrix)->columns(), parts[0].shape[1]);
  EXPECT_EQ((*matrix)->bytes(), backend.packed_bytes(dtype, (*matrix)->rows(), (*matrix)->columns()));
  return std::move(matrix).value();
}

// The weight row by row.
std::vector<float> read_back(Backend& backend, const PackedMatrix& weight) {
  const int64_t rows = weight.rows();
  const int64_t k = weight.columns();
  std::vector<float> identity(static_cast<size_t>(k * k));
  for (int64_t i = 0; i < k; ++i) identity[static_cast<size_t>(i * k + i)] = 1.0f;
  std::vector<float> out(static_cast<size_t>(k * rows));
  // Few rows at a time: a card may round the factors of many.
  for (int64_t row = 0; row < k; row += 8) {
    backend(LinearArgs{.x = identity.data() + row * k,
                       .x_stride = k,
                       .num_rows = std::min<int64_t>(8, k - row),
                       .weight = &weight,
                       .out = out.data() + row * rows,
                       .out_stride = rows});
  }
  std::vector<float> values(out.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < k; ++i) values[static_cast<size_t>(row * k + i)] = out[static_cast<size_t>(i * rows + row)];
  }
  return values;
}

std::vector<float> rounded(Backend& backend, const std::vector<float>& values, int64_t columns, DType dtype) {
  const TensorView view = view_of(values, columns);
  return read_back(backend, *quantised(backend, {&view, 1}, dtype));
}

double squared_error(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return sum;
}

float largest_of(const float* x, int64_t size) {
  float most = 0;
  for (int64_t i = 0; i < size; ++i) most = std::max(most, std::fabs(x[i]));
  return most;
}

// Rows of normal values of several sizes, some groups with a far value, some off the middle.
std::vector<float> weights(int64_t rows, int64_t columns, uint64_t seed) {
  Random random(seed);
  std::vector<float> values;
  for (int64_t row = 0; row < rows; ++row) {
    const float size = std::pow(10.0f, static_cast<float>(random.between(-3, 2)));
    for (int64_t i = 0; i < columns; ++i) {
      const float far = random.between(0, 60) == 0 ? 6.0f : 1.0f;
      values.push_back(size * (random.normal(far) + (i / 32 % 5 == 0 ? 2.0f : 0.0f)));
    }
  }
  return values;
}

constexpr DType kFormats[] = {DType::kQ8_0, DType::kQ4_1, DType::kQ4_K, DType::kF8E4M3};

class QuantiseTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    backend_ = exact_backend(GetParam());
    if (backend_ == nullptr) GTEST_SKIP() << "this machine lacks " << GetParam();
  }
  std::unique_ptr<Backend> backend_;
};

TEST_P(QuantiseTest, EightBitsAreAtMostHalfAStepOff) {
  const int64_t k = 96;
  const std::vector<float> stored = weights(37, k, 1);
  const std::vector<float> values = rounded(*backend_, stored, k, DType::kQ8_0);
  for (size_t begin = 0; begin < stored.size(); begin += 32) {
    // A half has 11 bits: the scale itself is off by up to 1 in 2048 of the largest value.
    const float most = largest_of(&stored[begin], 32);
    const float bound = most / 127.0f * 0.5f + most / 2048.0f;
    for (size_t i = begin; i < begin + 32; ++i) ASSERT_NEAR(values[i], stored[i], bound) << i;
  }
  double error = squared_error(values, stored);
  double steps = 0;
  for (size_t begin = 0; begin < stored.size(); begin += 32)
    steps += 32 * std::pow(largest_of(&stored[begin], 32) / 127.0, 2);
  // Evenly spread rounding errors have a twelfth of a step squared.
  EXPECT_NEAR(error / steps, 1.0 / 12, 0.01);
}

TEST_P(QuantiseTest, EightBitFloatsAreAtMostHalfAUnitOff) {
  const int64_t k = 77;  // no multiple of anything
  const std::vector<float> stored = weights(37, k, 2);
  const std::vector<float> values = rounded(*backend_, stored, k, DType::kF8E4M3);
  double relative = 0;
  for (size_t begin = 0; begin < stored.size(); begin += k) {
    const float scale = largest_of(&stored[begin], k) / 448.0f;
    for (size_t i = begin; i < begin + k; ++i) {
      const float bound = std::max(std::fabs(stored[i]) / 16.0f, scale * 0x1p-10f) * 1.000001f;
      ASSERT_NEAR(values[i], stored[i], bound) << i;
      relative = std::max(relative, std::fabs(values[i] / double{stored[i]} - 1));
    }
  }
  EXPECT_GT(relative, 0.03);  // three bits of fraction, not more
}

TEST_P(QuantiseTest, FourBitsAreFromTheRangeOfTheirGroup) {
  const int64_t k = 512;
  const std::vector<float> stored = weights(19, k, 3);
  for (const DType dtype : {DType::kQ4_1, DType::kQ4_K}) {
    const std::vector<float> values = rounded(*backend_, stored, k, dtype);
    for (size_t begin = 0; begin < stored.size(); begin += 32) {
      const auto [low, high] = std::minmax_element(&stored[begin], &stored[begin] + 32);
      const float step = (*high - (dtype == DType::kQ4_K ? std::min(*low, 0.0f) : *low)) / 15.0f;
      // The range may be cut by some 1 step at an end; scales of 6 bits are off by a 126th of their block's largest.
      const size_t block = begin / 256 * 256;
      const float slack = dtype == DType::kQ4_K ? largest_of(&stored[block], 256) * 0.06f : 0.0f;
      for (size_t i = begin; i < begin + 32; ++i)
        ASSERT_NEAR(values[i], stored[i], 1.9f * step + slack) << name(dtype) << " " << i;
    }
  }
}

// What every format can say comes back as it was.
TEST_P(QuantiseTest, ValuesThatTheFormatHasAreKeptExactly) {
  Random random(4);
  const int64_t k = 512;
  for (const DType dtype : kFormats) {
    std::vector<float> stored;
    for (int64_t row = 0; row < 20; ++row) {
      for (int64_t block = 0; block < k / 256; ++block) {
        const auto e = static_cast<float>(random.between(1, 3)) * 0x1p-11f;
        for (int64_t group = 0; group < 8; ++group) {
          const auto s = static_cast<float>(group == 3 ? 63 : random.between(1, 63));
          const auto m = static_cast<float>(group == 5 ? 63 : random.between(0, 63));
          const int64_t at = random.between(0, 16);
          for (int64_t i = 0; i < 32; ++i) {
            switch (dtype) {
              case DType::kQ8_0:
                stored.push_back((i == at ? -127.0f : static_cast<float>(random.between(-127, 127))) * s * 0x1p-9f);
                break;
              case DType::kF8E4M3:
                // The row's largest is 448 units; units of 2^-9 to 32.
                stored.push_back(i == 0 ? 448.0f
                                        : std::ldexp(static_cast<float>(random.between(-15, 15)),
                                                     static_cast<int>(random.between(-9, 4))));
                break;
              default: {
                // Every code appears, so that the range is the codes'.
                const auto q = static_cast<float>(i < 16 ? (i + at) % 16 : random.between(0, 15));
                stored.push_back(s * 0x1p-10f * q - e * m);
              }
            }
          }
        }
      }
    }
    const std::vector<float> values = rounded(*backend_, stored, k, dtype);
    for (size_t i = 0; i < stored.size(); ++i) ASSERT_EQ(values[i], stored[i]) << name(dtype) << " " << i;
  }
}

TEST_P(QuantiseTest, GroupsOfOneValueOrOfZerosAreThatValueUpToAHalf) {
  const int64_t k = 256;
  for (const DType dtype : kFormats) {
    std::vector<float> stored;
    for (const float value : {0.0f, 1.0f, -1.0f, 0.01f, -300.0f, 1e-6f}) stored.insert(stored.end(), k, value);
    const std::vector<float> values = rounded(*backend_, stored, k, dtype);
    for (size_t i = 0; i < stored.size(); ++i) {
      // Halves under 2^-14 are whole multiples of 2^-24, and half of that times the largest code is lost: of Q4_K codes
      // of 15 with a scale of 63.
      const float units = dtype == DType::kF8E4M3 ? 0.0f : dtype == DType::kQ4_K ? 15.0f * 63.0f : 127.0f;
      const float bound = std::fabs(stored[i]) * 0x1p-10f + units * 0x1p-25f;
      ASSERT_NEAR(values[i], stored[i], bound) << name(dtype) << " " << i;
    }
  }
}

TEST_P(QuantiseTest, NanSpoilsItsRowAndNoOther) {
  const int64_t k = 256;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (const DType dtype : kFormats) {
      std::vector<float> stored = weights(18, k, 5);
      const std::vector<float> before = rounded(*backend_, stored, k, dtype);
      for (const size_t at : {0, 31, 190, 255}) {
        std::vector<float> spoilt = stored;
        spoilt[9 * k + at] = bad;
        const std::vector<float> values = rounded(*backend_, spoilt, k, dtype);
        for (size_t i = 0; i < values.size(); ++i) {
          if (i / k == 9) {
            ASSERT_FALSE(std::isfinite(values[i])) << name(dtype) << ", " << bad << " at " << at << ": " << i;
          } else {
            ASSERT_EQ(values[i], before[i]) << name(dtype);
          }
        }
      }
    }
  }
}

TEST_P(QuantiseTest, PartsOfEveryStoredTypeLieAboveEachOther) {
  const int64_t k = 256;
  Random random(7);
  const testing::StoredWeights halves(DType::kF16, 21, k, random);
  const testing::StoredWeights brain(DType::kBF16, 7, k, random);
  const testing::StoredWeights floats(DType::kF32, 30, k, random);
  const std::vector<TensorView> parts = {halves.view(), brain.view(), floats.view()};
  for (const DType dtype : kFormats) {
    const auto together = quantised(*backend_, parts, dtype);
    EXPECT_EQ(together->rows(), 58);
    std::vector<float> expected;
    for (const TensorView& part : parts) {
      const std::vector<float> one = read_back(*backend_, *quantised(*backend_, {&part, 1}, dtype));
      expected.insert(expected.end(), one.begin(), one.end());
    }
    EXPECT_EQ(read_back(*backend_, *together), expected) << name(dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, QuantiseTest, ::testing::Values("reference", "portable", "avx2", "avx512", "cuda"),
                         [](const auto& test) { return test.param; });

class QuantiseKernelTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    backend_ = exact_backend(GetParam());
    if (backend_ == nullptr) GTEST_SKIP() << "this machine lacks " << GetParam();
  }
  std::unique_ptr<Backend> backend_;
};

// The reference spreads codes evenly from the smallest to the largest value and rounds.
TEST_P(QuantiseKernelTest, TheSearchLeavesAFifthLessSquaredErrorThanThePlainRange) {
  Random random(8);
  const int64_t k = 256;
  auto reference = make_reference_backend();
  for (const bool heavy_tails : {false, true}) {
    std::vector<float> stored = random.normals(96 * k);
    if (heavy_tails) {
      for (float& value : stored) value *= std::fabs(random.normal()) + 0.3f;
    }
    for (const auto& [dtype, most] : {std::pair(DType::kQ4_1, 0.83), std::pair(DType::kQ4_K, 0.86)}) {
      const double plain = squared_error(rounded(*reference, stored, k, dtype), stored);
      const double found = squared_error(rounded(*backend_, stored, k, dtype), stored);
      EXPECT_LT(found, most * plain) << name(dtype) << (heavy_tails ? ", heavy tails" : "");
    }
    for (const DType dtype : {DType::kQ8_0, DType::kF8E4M3}) {
      const double plain = squared_error(rounded(*reference, stored, k, dtype), stored);
      EXPECT_NEAR(squared_error(rounded(*backend_, stored, k, dtype), stored) / plain, 1.0, 1e-3) << name(dtype);
    }
  }
}

// The least squared error of 32 values by 16 even levels: every pair of ends of a fine grid, each followed by the best
// line for its codes, twice.
double least_error(const float* x) {
  const auto [low, high] = std::minmax_element(x, x + 32);
  double least = INFINITY;
  for (int a = -2; a <= 20; ++a) {
    for (int b = -2; b <= 20; ++b) {
      double m = *low + a * 0.02 * (*high - *low);
      double d = (*high - b * 0.02 * (*high - *low) - m) / 15;
      for (int round = 0; round < 3; ++round) {
        double n_q = 0;
        double n_qq = 0;
        double n_x = 0;
        double n_qx = 0;
        double error = 0;
        for (int i = 0; i < 32; ++i) {
          const double q = std::clamp(std::nearbyint((x[i] - m) / d), 0.0, 15.0);
          error += (x[i] - m - d * q) * (x[i] - m - d * q);
          n_q += q;
          n_qq += q * q;
          n_x += x[i];
          n_qx += q * x[i];
        }
        least = std::min(least, error);
        const double spread = 32 * n_qq - n_q * n_q;
        if (spread <= 0) break;
        d = (32 * n_qx - n_q * n_x) / spread;
        m = (n_x - d * n_q) / 32;
        if (d <= 0) break;
      }
    }
  }
  return least;
}

TEST_P(QuantiseKernelTest, TheSearchIsNearTheExhaustiveOne) {
  Random random(9);
  const std::vector<float> stored = random.normals(64 * 32);
  const double found = squared_error(rounded(*backend_, stored, 32, DType::kQ4_1), stored);
  double least = 0;
  for (size_t begin = 0; begin < stored.size(); begin += 32) least += least_error(&stored[begin]);
  EXPECT_LT(found, 1.08 * least);
  EXPECT_GT(found, 0.99 * least);
}

TEST_P(QuantiseKernelTest, AnyNumberOfThreadsGivesTheSameBits) {
  const int64_t k = 256;
  const std::vector<float> stored = weights(150, k, 10);
  auto alone = exact_backend(GetParam(), 1);
  auto many = exact_backend(GetParam(), 5);
  for (const DType dtype : kFormats) {
    const std::vector<float> expected = rounded(*alone, stored, k, dtype);
    EXPECT_EQ(rounded(*many, stored, k, dtype), expected) << name(dtype);
  }
}

// F8_E4M3 has no other way in, so that its products are tested here.
TEST_P(QuantiseKernelTest, ProductsOfEightBitFloatsAreThoseOfTheirValues) {
  Random random(11);
  for (const int64_t k : {1, 7, 64, 577}) {
    for (const int64_t n : {1, 16, 17, 40, 96}) {
      const std::vector<float> stored = random.normals(n * k, 0.1f);
      const TensorView view = view_of(stored, k);
      const auto weight = quantised(*backend_, {&view, 1}, DType::kF8E4M3);
      const std::vector<float> values = read_back(*backend_, *weight);
      const std::vector<float> bias = random.normals(n);
      const int64_t rows = 33;
      const std::vector<float> x = random.normals(rows * k);
      std::vector<float> all(static_cast<size_t>(rows * n));
      const auto product = [&](int64_t first, int64_t count, float* out) {
        (*backend_)(LinearArgs{.x = x.data() + first * k,
                               .x_stride = k,
                               .num_rows = count,
                               .weight = weight.get(),
                               .bias = bias.data(),
                               .out = out,
                               .out_stride = n});
      };
      product(0, rows, all.data());
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t column = 0; column < n; ++column) {
          double sum = bias[static_cast<size_t>(column)];
          for (int64_t i = 0; i < k; ++i)
            sum += double{x[static_cast<size_t>(row * k + i)]} * values[static_cast<size_t>(column * k + i)];
          ASSERT_NEAR(all[static_cast<size_t>(row * n + column)], sum, 2e-5 * (1 + std::fabs(sum)));
        }
      }
      for (int64_t first = 0; first < rows;) {
        const int64_t count = std::min(rows - first, random.between(1, 9));
        std::vector<float> some(static_cast<size_t>(count * n));
        product(first, count, some.data());
        ASSERT_TRUE(testing::same_bits(some.data(), all.data() + first * n, count * n)) << "k " << k << ", n " << n;
        first += count;
      }
    }
  }
}

TEST_P(QuantiseKernelTest, BytesAreThoseOfTheFormat) {
  EXPECT_EQ(backend_->packed_bytes(DType::kQ8_0, 64, 1024), 64 * 1024 * 34 / 32);
  EXPECT_EQ(backend_->packed_bytes(DType::kQ4_1, 64, 1024), 64 * 1024 * 20 / 32);
  EXPECT_EQ(backend_->packed_bytes(DType::kQ4_K, 64, 1024), 64 * 1024 * 148 / 256);
  EXPECT_EQ(backend_->packed_bytes(DType::kF8E4M3, 64, 1024), 64 * (1024 + 4));
  EXPECT_EQ(backend_->packed_bytes(DType::kF8E4M3_128, 64, 1024), 64 * (1024 + 8 * 4));
  EXPECT_EQ(backend_->packed_bytes(DType::kF8E4M3_128, 64, 1000), 64 * (1000 + 8 * 4));
  EXPECT_EQ(backend_->packed_bytes(DType::kF8E4M3_32, 64, 1000), 64 * (1000 + 32 * 4));
}

// As a checkpoint of them is given to pack(): codes, and behind each row the float that they are multiplied by.
TEST_P(QuantiseKernelTest, RowsOfEightBitFloatsWithTheirScalesArePackedAsTheyAre) {
  constexpr int64_t kColumns = 33;
  std::vector<uint8_t> rows;
  for (const auto& [code, scale] : {std::pair<uint8_t, float>{0x38, 0.3f}, {0xc4, 2.0f}}) {  // 1 and -3
    rows.insert(rows.end(), kColumns, code);
    rows.resize(rows.size() + sizeof(scale));
    std::memcpy(rows.data() + rows.size() - sizeof(scale), &scale, sizeof(scale));
  }
  const TensorView view{rows.data(), DType::kF8E4M3, Shape{2, kColumns}};
  const auto weight = backend_->pack({&view, 1});
  ASSERT_TRUE(weight.ok()) << weight.status().message();
  EXPECT_EQ((*weight)->bytes(), backend_->packed_bytes(DType::kF8E4M3, 2, kColumns));
  const std::vector<float> values = read_back(*backend_, **weight);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], i < kColumns ? 0.3f : -6.0f) << i;
}

TEST_P(QuantiseKernelTest, RowsOfEightBitFloatsWithScalesOfColumnsArePackedAsTheyAre) {
  constexpr int64_t kColumns = 300;  // the last scale is that of 44, or of 12
  Random random(12);
  for (const DType dtype : {DType::kF8E4M3_128, DType::kF8E4M3_32}) {
    const testing::StoredWeights stored(dtype, 19, kColumns, random);
    const TensorView view = stored.view();
    const auto weight = backend_->pack({&view, 1});
    ASSERT_TRUE(weight.ok()) << weight.status().message();
    EXPECT_EQ((*weight)->bytes(), backend_->packed_bytes(dtype, 19, kColumns));
    EXPECT_EQ(read_back(*backend_, **weight), testing::values_of(view));
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, QuantiseKernelTest, ::testing::ValuesIn(kCpuIsas),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::ops
