#include "nn/quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "nn/expert_linear.h"
#include "nn/linear.h"
#include "nn/moe.h"
#include "ops/cpu/cpu_backend.h"
#include "tests/nn/memory_checkpoint.h"

namespace quire::nn {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(QuantizationTest, TheFormatFollowsFromTheRoleAndTheLengthOfTheRows) {
  using Q = Quantization;
  using R = WeightRole;
  struct Case {
    Q quantization;
    R role;
    int64_t columns;
    std::optional<DType> expected;
  };
  for (const Case& c : std::vector<Case>{{Q::kNone, R::kProjection, 256, std::nullopt},
                                         {Q::kInt8, R::kProjection, 256, DType::kQ8_0},
                                         {Q::kInt8, R::kProjection, 96, DType::kQ8_0},
                                         {Q::kInt8, R::kProjection, 100, std::nullopt},
                                         {Q::kInt8, R::kHead, 576, DType::kQ8_0},
                                         {Q::kInt4, R::kProjection, 512, DType::kQ4_K},
                                         {Q::kInt4, R::kProjection, 576, DType::kQ4_1},
                                         {Q::kInt4, R::kProjection, 48, std::nullopt},
                                         {Q::kInt4, R::kHead, 512, DType::kQ8_0},
                                         {Q::kFp8, R::kProjection, 100, DType::kF8E4M3},
                                         {Q::kFp8, R::kHead, 512, DType::kF8E4M3},
                                         {Q::kInt8, R::kExact, 256, std::nullopt},
                                         {Q::kInt4, R::kExact, 256, std::nullopt},
                                         {Q::kFp8, R::kExact, 256, std::nullopt}}) {
    EXPECT_EQ(quantised_dtype(c.quantization, c.role, c.columns), c.expected)
        << name(c.quantization) << " " << static_cast<int>(c.role) << " " << c.columns;
  }
}

std::vector<uint8_t> float_bytes(int64_t count, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<uint8_t> bytes(static_cast<size_t>(count) * sizeof(float));
  for (int64_t i = 0; i < count; ++i) {
    const float value = normal(engine);
    std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(float), &value, sizeof(value));
  }
  return bytes;
}

void add_floats(MemoryCheckpoint& checkpoint, const std::string& name, const Shape& shape) {
  checkpoint.add(name, DType::kF32, shape, float_bytes(shape.num_elements(), std::hash<std::string>{}(name)));
}

class LoaderQuantizationTest : public ::testing::Test {
 protected:
  LoaderQuantizationTest() : backend_(std::move(ops::make_cpu_backend({.threads = 2})).value()) {}

  // build(loader) twice: the plan's bytes are what the load takes, and its report says the same but for the time.
  template <typename Build>
  QuantizationReport plan_and_load(const MemoryCheckpoint& checkpoint, Quantization quantization, const Build& build) {
    Loader plan(Loader::Mode::kPlan, checkpoint, *backend_, quantization);
    build(plan);
    Loader load(Loader::Mode::kLoad, checkpoint, *backend_, quantization);
    std::vector<int64_t> told;
    load.tell([&](int64_t bytes) { told.push_back(bytes); });
    build(load);
    EXPECT_THAT(told, Not(IsEmpty()));
    EXPECT_TRUE(std::ranges::is_sorted(told));
    EXPECT_TRUE(load.finish({}).ok()) << load.finish({}).message();
    EXPECT_EQ(plan.bytes(), load.bytes());
    EXPECT_EQ(plan.quantized().packed_bytes, load.quantized().packed_bytes);
    EXPECT_EQ(plan.quantized().num_matrices, load.quantized().num_matrices);
    EXPECT_EQ(plan.quantized().num_kept, load.quantized().num_kept);
    EXPECT_THAT(plan.quantized().to_string(), Not(HasSubstr("GB/s")));
    if (load.quantized().num_matrices > 0) {
      EXPECT_THAT(load.quantized().to_string(), HasSubstr("GB/s"));
    }
    return load.quantized();
  }

  std::unique_ptr<ops::Backend> backend_;
};

TEST_F(LoaderQuantizationTest, ProjectionsAreRoundedWhatHasOddRowsOrARoutersRoleStays) {
  MemoryCheckpoint checkpoint;
  add_floats(checkpoint, "q.weight", {64, 512});
  add_floats(checkpoint, "k.weight", {32, 512});
  add_floats(checkpoint, "odd.weight", {64, 40});
  add_floats(checkpoint, "router.weight", {8, 512});
  add_floats(checkpoint, "head.weight", {96, 512});
  const auto build = [](Loader& loader) {
    const Linear fused(loader, {{"q", 64, false}, {"k", 32, false}}, 512);
    const Linear odd(loader, "odd", 40, 64);
    const Linear router(loader, "router", 512, 8, /*bias=*/false, WeightRole::kExact);
    const Linear head(loader, "head", 512, 96, /*bias=*/false, WeightRole::kHead);
  };
  const QuantizationReport int4 = plan_and_load(checkpoint, Quantization::kInt4, build);
  EXPECT_EQ(int4.num_matrices, 3);
  EXPECT_EQ(int4.stored_bytes, (96 + 96) * 512 * 4);
  EXPECT_EQ(int4.packed_bytes, 96 * 512 * 148 / 256 + 96 * 512 * 34 / 32);
  EXPECT_EQ(int4.dtypes, (std::vector<DType>{DType::kQ4_K, DType::kQ8_0}));
  EXPECT_EQ(int4.num_kept, 1);
  EXPECT_EQ(int4.kept_bytes, 64 * 40 * 4);
  EXPECT_THAT(int4.to_string(), HasSubstr("int4: 3 matrices of 384.0 KiB to 78.8 KiB of Q4_K, Q8_0"));
  EXPECT_THAT(int4.to_string(), HasSubstr("1 matrices of 10.0 KiB stay as they are stored"));

  const QuantizationReport fp8 = plan_and_load(checkpoint, Quantization::kFp8, build);
  EXPECT_EQ(fp8.num_matrices, 4);
  EXPECT_EQ(fp8.num_kept, 0);
  const QuantizationReport none = plan_and_load(checkpoint, Quantization::kNone, build);
  EXPECT_EQ(none.num_matrices, 0);
  EXPECT_EQ(none.to_string(), "");
}

TEST_F(LoaderQuantizationTest, ExpertsAreRoundedOneByOneInEverySpellingAndTheirRouterStays) {
  constexpr int32_t kNumExperts = 3;
  MemoryCheckpoint named;
  MemoryCheckpoint stacks;
  for (int32_t e = 0; e < kNumExperts; ++e) {
    for (const char* part : {"gate_proj", "up_proj"})
      add_floats(named, fmt::format("mlp.experts.{}.{}.weight", e, part), {64, 96});
    add_floats(named, fmt::format("mlp.experts.{}.down_proj.weight", e), {96, 64});
  }
  add_floats(stacks, "mlp.experts.gate_proj.weight", {kNumExperts, 64, 96});
  add_floats(stacks, "mlp.experts.up_proj.weight", {kNumExperts, 64, 96});
  add_floats(stacks, "mlp.experts.down_proj.weight", {kNumExperts, 96, 64});
  for (MemoryCheckpoint* checkpoint : {&named, &stacks}) {
    add_floats(*checkpoint, "mlp.gate.weight", {kNumExperts, 96});
    MoeOptions options{.hidden_size = 96};
    options.moe.num_experts = kNumExperts;
    options.moe.experts_per_token = 2;
    options.moe.intermediate_size = 64;
    const QuantizationReport report = plan_and_load(*checkpoint, Quantization::kInt8,
                                                    [&](Loader& loader) { const MoeBlock block(loader, "", options); });
    EXPECT_EQ(report.num_matrices, 3 * kNumExperts);
    EXPECT_EQ(report.packed_bytes, kNumExperts * (128 * 96 + 96 * 64) * 34 / 32);
    EXPECT_EQ(report.num_kept, 0);
  }
}

// With rounding, experts whose stored types differ become of one.
TEST_F(LoaderQuantizationTest, ExpertsOfSeveralStoredTypesAreTakenWhenRounded) {
  MemoryCheckpoint mixed;
  for (int32_t e = 0; e < 3; ++e) {
    for (const char* part : {"gate_proj", "up_proj"}) {
      const std::string name = fmt::format("mlp.experts.{}.{}.weight", e, part);
      std::vector<uint8_t> bytes = float_bytes(32 * 64, static_cast<uint64_t>(e));
      if (e == 1) bytes.resize(bytes.size() / 2);
      mixed.add(name, e == 1 ? DType::kBF16 : DType::kF32, {32, 64}, std::move(bytes));
    }
  }
  const QuantizationReport report = plan_and_load(mixed, Quantization::kFp8, [](Loader& loader) {
    ExpertLinear::gate_and_up(loader, "mlp.", {.num_experts = 3, .hidden_size = 64, .intermediate_size = 32});
  });
  EXPECT_EQ(report.num_matrices, 6);
}

TEST_F(LoaderQuantizationTest, WhatIsQuantisedAlreadyIsRefusedByNameAndType) {
  MemoryCheckpoint checkpoint;
  add_floats(checkpoint, "a.weight", {32, 64});
  checkpoint.add("b.weight", DType::kQ4_0, {32, 64}, std::vector<uint8_t>(32 * 64 / 32 * 18));
  for (const Loader::Mode mode : {Loader::Mode::kPlan, Loader::Mode::kLoad}) {
    Loader loader(mode, checkpoint, *backend_, Quantization::kInt4);
    const Linear a(loader, "a", 64, 32);
    const Linear b(loader, "b", 64, 32);
    const Status status = loader.finish({});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("--quantization int4"));
    EXPECT_THAT(status.message(), HasSubstr("1 of this checkpoint's 2 tensors"));
    EXPECT_THAT(status.message(), HasSubstr("b.weight as Q4_0"));
    Loader without(mode, checkpoint, *backend_);
    const Linear again(without, "a", 64, 32);
    const Linear stored(without, "b", 64, 32);
    EXPECT_TRUE(without.finish({}).ok());
  }
}

}  // namespace
}  // namespace quire::nn
