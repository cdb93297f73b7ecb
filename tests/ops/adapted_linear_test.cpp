// A product and what adapters add to it, at once: the bits of one after the other.
#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "ops/cpu/cpu_backend.h"
#include "tensor/stored_values.h"
#include "tests/ops/ops_test_support.h"

namespace quire::ops {
namespace {

using testing::Random;
using testing::same_bits;
using testing::StoredWeights;

// Of bfloat16: parts of any ranks and sizes, some columns between them without any.
struct RandomAdapter {
  RandomAdapter(int64_t in_features, int64_t out_features, int64_t column_step, Random& random,
                int64_t most_rank = 20) {
    factors.dtype = DType::kBF16;
    factors.in_features = in_features;
    for (int64_t column = column_step * random.between(0, 2); column < out_features;) {
      const int64_t size = std::min(random.between(1, out_features / 2 + 1), out_features - column);
      const auto rank = static_cast<int32_t>(random.between(1, most_rank));
      ups.push_back(codes(random.normals(low_rank_up_bytes(DType::kBF16, size, rank) / 2)));
      parts.push_back({.column = column, .size = size, .first = factors.rank, .rank = rank, .scale = 0.5f});
      factors.rank += rank;
      column += (size + column_step - 1) / column_step * column_step + column_step * random.between(0, 1);
    }
    if (parts.empty()) {
      ups.push_back(codes(random.normals(low_rank_up_bytes(DType::kBF16, 1, 3) / 2)));
      parts.push_back({.size = 1, .rank = 3});
      factors.rank = 3;
    }
    for (size_t i = 0; i < parts.size(); ++i) parts[i].up = ups[i].data();
    down = codes(random.normals(factors.rank * in_features, 0.1f));
    factors.down = down.data();
    factors.parts = parts;
  }
  RandomAdapter(const RandomAdapter&) = delete;

  static std::vector<uint16_t> codes(const std::vector<float>& values) {
    std::vector<uint16_t> all;
    for (const float value : values) all.push_back(float_to_bfloat16(value));
    return all;
  }

  std::vector<std::vector<uint16_t>> ups;
  std::vector<uint16_t> down;
  std::vector<LowRankPart> parts;
  LowRankFactors factors;
};

// Runs of one row and of several, some rows without.
std::vector<LowRankRun> random_runs(const std::vector<std::unique_ptr<RandomAdapter>>& adapters, int64_t rows,
                                    int64_t most_rows, Random& random) {
  std::vector<LowRankRun> runs;
  for (int64_t row = random.between(0, 1); row < rows;) {
    const int64_t count = std::min(rows - row, random.between(0, 1) == 0 ? 1 : random.between(1, most_rows));
    const int64_t adapter = random.between(0, std::ssize(adapters) - 1);
    runs.push_back({&adapters[static_cast<size_t>(adapter)]->factors, row, count});
    row += count + random.between(0, 1);
  }
  return runs;
}

// That both at once have the bits of one after the other, and that something was added.
void expect_same(Backend& backend, const PackedMatrix& weight, std::span<const LowRankRun> runs, int64_t rows,
                 bool has_bias, Random& random) {
  const int64_t k = weight.columns();
  const int64_t n = weight.rows();
  const std::vector<float> x = random.normals(rows * k);
  const std::vector<float> bias = random.normals(n);
  std::vector<float> expected(static_cast<size_t>(rows * n));
  std::vector<float> found(expected.size());
  const auto product_to = [&](std::vector<float>& out) {
    return LinearArgs{.x = x.data(),
                      .x_stride = k,
                      .num_rows = rows,
                      .weight = &weight,
                      .bias = has_bias ? bias.data() : nullptr,
                      .out = out.data(),
                      .out_stride = n};
  };
  const auto addition_to = [&](std::vector<float>& out) {
    return LowRankArgs{.x = x.data(),
                       .x_stride = k,
                       .num_rows = rows,
                       .runs = runs,
                       .out = out.data(),
                       .out_stride = n,
                       .out_features = n};
  };
  backend(product_to(expected));
  const std::vector<float> plain = expected;
  backend(addition_to(expected));
  backend(AdaptedLinearArgs{.product = product_to(found), .low_rank = addition_to(found)});
  ASSERT_TRUE(same_bits(found.data(), expected.data(), rows * n));
  EXPECT_EQ(runs.empty(), expected == plain) << "nothing was added";
}

class AdaptedLinearTest : public ::testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  // Calls body(backend) for one, two and three threads.
  template <typename Body>
  void for_threads(const Body& body) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed_);
    for (const int threads : {1, 2, 3}) {
      const auto backend = testing::make_backend(std::get<0>(GetParam()), threads);
      if (backend == nullptr) GTEST_SKIP() << "this machine lacks " << std::get<0>(GetParam());
      SCOPED_TRACE(::testing::Message() << threads << " threads");
      ASSERT_NO_FATAL_FAILURE(body(*backend));
    }
  }

  const DType dtype_ = std::get<1>(GetParam());
  const uint64_t seed_ = std::random_device{}();
  Random random_{seed_};
};

TEST_P(AdaptedLinearTest, IsTheProductAndThenTheAdditionToTheBit) {
  for_threads([&](Backend& backend) {
    for (int round = 0; round < 12; ++round) {
      const int64_t k = std::max<int64_t>(info(dtype_).block_values, 64) * random_.between(1, 5);
      const int64_t n = random_.between(1, round % 3 == 0 ? 100 : 1500);
      const int64_t rows = round % 4 == 0 ? 1 : random_.between(1, round % 4 == 1 ? 150 : 40);
      SCOPED_TRACE(::testing::Message() << "k " << k << ", n " << n << ", rows " << rows);
      const StoredWeights stored(dtype_, n, k, random_);
      const auto weight = backend.pack(std::vector<TensorView>{stored.view()});
      ASSERT_TRUE(weight.ok()) << weight.status().message();
      std::vector<std::unique_ptr<RandomAdapter>> adapters;
      for (int i = 0; i < 5; ++i)
        adapters.push_back(std::make_unique<RandomAdapter>(k, n, round % 5 == 4 ? 1 : kLowRankColumns, random_));
      const std::vector<LowRankRun> runs = random_runs(adapters, rows, /*most_rows=*/30, random_);
      ASSERT_NO_FATAL_FAILURE(expect_same(backend, **weight, runs, rows, round % 2 == 0, random_));
    }
  });
}

// So many bytes of factors that a thread has them in several parts.
TEST_P(AdaptedLinearTest, IsSoWithManyLargeAdapters) {
  for_threads([&](Backend& backend) {
    constexpr int64_t kColumns = 512;
    const StoredWeights stored(dtype_, random_.between(1500, 2500), kColumns, random_);
    const auto weight = backend.pack(std::vector<TensorView>{stored.view()});
    ASSERT_TRUE(weight.ok()) << weight.status().message();
    std::vector<std::unique_ptr<RandomAdapter>> adapters;
    int64_t bytes = 0;
    while (bytes < 6 << 20) {
      adapters.push_back(
          std::make_unique<RandomAdapter>(kColumns, (*weight)->rows(), kLowRankColumns, random_, /*most_rank=*/100));
      for (const std::vector<uint16_t>& up : adapters.back()->ups) bytes += std::ssize(up) * 2;
    }
    const int64_t rows = 3 * std::ssize(adapters) / 2;
    const std::vector<LowRankRun> runs = random_runs(adapters, rows, /*most_rows=*/2, random_);
    ASSERT_NO_FATAL_FAILURE(expect_same(backend, **weight, runs, rows, /*has_bias=*/true, random_));
  });
}

INSTANTIATE_TEST_SUITE_P(
    AllSets, AdaptedLinearTest,
    ::testing::Combine(::testing::ValuesIn(testing::kCpuIsas),
                       ::testing::Values(DType::kF32, DType::kBF16, DType::kQ4_1, DType::kQ8_0, DType::kQ6_K)),
    [](const auto& test) { return std::get<0>(test.param) + "_" + std::string(name(std::get<1>(test.param))); });

}  // namespace
}  // namespace quire::ops
