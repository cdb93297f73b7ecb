#include "quantize/gptq.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "ops/cpu/cpu_backend.h"
#include "ops/reference/reference_backend.h"

namespace quire::quantize {
namespace {

constexpr int64_t kColumns = 192;
constexpr int64_t kRows = 24;

float unchanged_scale(float scale) {
  return scale;
}

GptqOptions options_of(int64_t group) {
  return {.bits = 4, .group_size = group, .damping = 0.01, .stored_scale = unchanged_scale};
}

// Inputs that go together, as those of a layer do: mixtures of a few directions, some of them much larger.
std::vector<float> inputs(uint32_t seed, int64_t rows) {
  std::mt19937 mixing(1);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  constexpr int64_t kDirections = 24;
  std::vector<float> directions(kDirections * kColumns);
  for (float& x : directions) x = normal(mixing);
  std::vector<float> out(static_cast<size_t>(rows * kColumns));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < kColumns; ++k) out[static_cast<size_t>(row * kColumns + k)] = 0.1f * normal(random);
    for (int64_t d = 0; d < kDirections; ++d) {
      const float amount = normal(random) / static_cast<float>(1 + d);
      for (int64_t k = 0; k < kColumns; ++k)
        out[static_cast<size_t>(row * kColumns + k)] += amount * directions[static_cast<size_t>(d * kColumns + k)];
    }
  }
  return out;
}

std::vector<float> weights(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.1f);
  std::vector<float> out(kRows * kColumns);
  for (float& x : out) x = normal(random);
  return out;
}

std::vector<float> values_of(const CodedRows& rows, int64_t group) {
  std::vector<float> out(rows.codes.size());
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = rows.scales[i / static_cast<size_t>(group)] * static_cast<float>(rows.codes[i]);
  return out;
}

// Mean over inputs of the squared difference of all outputs.
double output_error(const std::vector<float>& one, const std::vector<float>& other, const std::vector<float>& x) {
  const std::ptrdiff_t num = std::ssize(x) / kColumns;
  double sum = 0;
  for (int64_t i = 0; i < num; ++i) {
    for (int64_t row = 0; row < kRows; ++row) {
      double off = 0;
      for (int64_t k = 0; k < kColumns; ++k) {
        const auto at = static_cast<size_t>(row * kColumns + k);
        off += (static_cast<double>(one[at]) - static_cast<double>(other[at])) *
               static_cast<double>(x[static_cast<size_t>(i * kColumns + k)]);
      }
      sum += off * off;
    }
  }
  return sum / static_cast<double>(num);
}

std::vector<float> hessian_of(const std::vector<float>& x, ops::Backend& backend) {
  Hessian hessian(backend, kColumns);
  hessian.add(ops::ConstView(x.data(), std::ssize(x) / kColumns, kColumns));
  auto taken = hessian.take();
  EXPECT_TRUE(taken.ok()) << taken.status().message();
  return *std::move(taken);
}

TEST(Hessian, IsTheMeanOfProductsOfColumns) {
  const auto backend = ops::make_reference_backend();
  const std::vector<float> x = inputs(4, 1500);  // more than are multiplied at once
  const std::vector<float> hessian = hessian_of(x, *backend);
  for (const auto& [i, j] : {std::pair<size_t, size_t>{0, 0}, {3, 100}, {191, 7}, {64, 64}}) {
    double sum = 0;
    for (size_t row = 0; row < 1500; ++row)
      sum += static_cast<double>(x[row * kColumns + i]) * static_cast<double>(x[row * kColumns + j]);
    EXPECT_NEAR(hessian[i * kColumns + j], sum / 1500, 1e-3 * std::abs(sum / 1500) + 1e-3);
    EXPECT_FLOAT_EQ(hessian[i * kColumns + j], hessian[j * kColumns + i]);
  }
}

TEST(Gptq, LeavesMuchLessErrorInTheOutputsThanRounding) {
  const auto backend = ops::make_reference_backend();
  ThreadPool threads({.num_threads = 2, .pin = false});
  const std::vector<float> w = weights(2);
  const std::vector<float> seen = inputs(5, 800);
  const std::vector<float> unseen = inputs(6, 400);
  for (const int64_t group : {32, 64, 192}) {
    const auto rounded = gptq_round(w, kRows, kColumns, {}, options_of(group), threads);
    const auto calibrated = gptq_round(w, kRows, kColumns, hessian_of(seen, *backend), options_of(group), threads);
    ASSERT_TRUE(rounded.ok() && calibrated.ok());
    const auto off_by = [&](const CodedRows& rows, const std::vector<float>& x) {
      return output_error(w, values_of(rows, group), x);
    };
    EXPECT_LT(off_by(*calibrated, seen), 0.6 * off_by(*rounded, seen)) << group;
    EXPECT_LT(off_by(*calibrated, unseen), 0.7 * off_by(*rounded, unseen)) << "inputs that calibration has not seen";
    // What it says of its loss is the error of the outputs, but for the damping.
    GptqOptions undamped = options_of(group);
    undamped.damping = 1e-5;
    const auto exact = gptq_round(w, kRows, kColumns, hessian_of(seen, *backend), undamped, threads);
    ASSERT_TRUE(exact.ok());
    EXPECT_NEAR(exact->loss / off_by(*exact, seen), 1.0, 0.05) << group;
  }
}

TEST(Gptq, ColumnsThatDoNotGoTogetherAreRoundedByThemselves) {
  ThreadPool threads({.num_threads = 1, .pin = false});
  const std::vector<float> w = weights(9);
  std::vector<float> identity(kColumns * kColumns, 0.0f);
  for (size_t i = 0; i < kColumns; ++i) identity[i * kColumns + i] = 1;
  const auto rounded = gptq_round(w, kRows, kColumns, {}, options_of(64), threads);
  const auto calibrated = gptq_round(w, kRows, kColumns, identity, options_of(64), threads);
  ASSERT_TRUE(rounded.ok() && calibrated.ok());
  EXPECT_EQ(rounded->codes, calibrated->codes);
  EXPECT_EQ(rounded->scales, calibrated->scales);
}

TEST(Gptq, ColumnsThatNoInputReachesAndThreadsChangeNothing) {
  const auto backend = ops::make_reference_backend();
  std::vector<float> x = inputs(8, 300);
  for (size_t i = 0; i < x.size(); ++i) {
    if (i % kColumns < 40) x[i] = 0;
  }
  const std::vector<float> w = weights(3);
  const std::vector<float> hessian = hessian_of(x, *backend);
  ThreadPool one({.num_threads = 1, .pin = false});
  ThreadPool two({.num_threads = 2, .pin = false});
  const auto first = gptq_round(w, kRows, kColumns, hessian, options_of(32), one);
  const auto second = gptq_round(w, kRows, kColumns, hessian, options_of(32), two);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->codes, second->codes);
  for (const float value : values_of(*first, 32)) EXPECT_TRUE(std::isfinite(value));
}

TEST(Gptq, AHessianThatIsNoneIsAnError) {
  ThreadPool threads({.num_threads = 1, .pin = false});
  std::vector<float> wrong(kColumns * kColumns, 0.0f);
  for (size_t i = 0; i < kColumns; ++i) wrong[i * kColumns + i] = -1;
  const auto result = gptq_round(weights(1), kRows, kColumns, wrong, options_of(64), threads);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("192 columns"), std::string::npos) << result.status().message();
}

}  // namespace
}  // namespace quire::quantize
