// Experts of which a checkpoint has some in codes and others as plain numbers, as lists of modules that are left out
// make them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include <fmt/format.h>

#include "nn/expert_linear.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/reference/reference_backend.h"
#include "tensor/stored_values.h"
#include "tests/nn/bare_step.h"
#include "tests/nn/memory_checkpoint.h"

namespace quire::nn {
namespace {

constexpr int32_t kMixed = 6;
constexpr int64_t kMixedInputs = 64;
constexpr int64_t kMixedRows = 32;

enum class MixedKind { kCodes, kFloat32, kBFloat16 };

class MixedExperts : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    backend_ = std::string_view(GetParam()) == "reference"
                   ? ops::make_reference_backend()
                   : ops::make_cpu_backend({.threads = 2, .activation_dtype = ActivationDType::kFloat32}).value();
    checkpoint_.set_config(
        {{"quantization_config",
          {{"quant_method", "compressed-tensors"},
           {"format", "int-quantized"},
           {"config_groups",
            {{"g",
              {{"targets", boost::json::array{"Linear"}},
               {"weights", {{"num_bits", 8}, {"type", "int"}, {"strategy", "channel"}, {"symmetric", true}}}}}}}}}});
  }

  // A matrix [rows, columns] of the checkpoint; its values.
  std::vector<double> add(const std::string& module, MixedKind kind, int64_t rows, int64_t columns) {
    std::vector<int8_t> codes;
    std::vector<float> numbers;
    std::vector<uint16_t> halves;
    std::vector<double> values;
    const float scale = static_cast<float>(1 + engine_() % 7) / 512.0f;
    for (int64_t i = 0; i < rows * columns; ++i) {
      codes.push_back(static_cast<int8_t>(static_cast<int>(engine_() % 255) - 127));
      numbers.push_back(static_cast<float>(codes.back()) * scale);
      halves.push_back(float_to_bfloat16(numbers.back()));
      values.push_back(kind == MixedKind::kBFloat16 ? bfloat16_to_float(halves.back()) : numbers.back());
    }
    if (kind == MixedKind::kCodes) {
      checkpoint_.add(module + ".weight", DType::kI8, {rows, columns}, stored_bytes(codes));
      checkpoint_.add(module + ".weight_scale", DType::kF32, {rows, 1},
                      stored_bytes(std::vector<float>(static_cast<size_t>(rows), scale)));
    } else if (kind == MixedKind::kFloat32) {
      checkpoint_.add(module + ".weight", DType::kF32, {rows, columns}, stored_bytes(numbers));
    } else {
      checkpoint_.add(module + ".weight", DType::kBF16, {rows, columns}, stored_bytes(halves));
    }
    return values;
  }

  // Two rows for each expert of `own` through gate and up.
  void expect_products(const ExpertShape& shape, const std::vector<std::vector<double>>& gates,
                       const std::vector<std::vector<double>>& ups, const std::vector<float>& bias = {}) {
    Loader plan(Loader::Mode::kPlan, checkpoint_, *backend_);
    ExpertLinear::gate_and_up(plan, "mlp.", shape);
    Loader loader(Loader::Mode::kLoad, checkpoint_, *backend_);
    const ExpertLinear linear = ExpertLinear::gate_and_up(loader, "mlp.", shape);
    ASSERT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
    EXPECT_EQ(plan.bytes(), loader.bytes());
    constexpr int64_t kRows = 2 * kMixed;
    std::vector<int32_t> offsets;
    for (int32_t e = 0; e <= kMixed; ++e) offsets.push_back(2 * e);
    std::vector<float> x(kRows * kMixedInputs);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50) / 50.0f;
    std::vector<float> out(kRows * 2 * kMixedRows, 7.0f);
    linear(BareStep(*backend_), ops::ConstView(x.data(), kRows, kMixedInputs), offsets.data(),
           ops::View(out.data(), kRows, 2 * kMixedRows));
    for (int64_t i = 0; i < kRows; ++i) {
      const int64_t expert = i / 2;
      const Range own = shape.own_experts();
      for (int64_t row = 0; row < 2 * kMixedRows; ++row) {
        const float found = out[static_cast<size_t>(i * 2 * kMixedRows + row)];
        if (expert < own.first || expert >= own.end()) {
          ASSERT_EQ(found, 7.0f) << "of another rank's expert";
          continue;
        }
        const std::vector<double>& values = (row < kMixedRows ? gates : ups)[static_cast<size_t>(expert)];
        double sum = bias.empty() ? 0 : bias[static_cast<size_t>(expert * 2 * kMixedRows + row)];
        for (int64_t k = 0; k < kMixedInputs; ++k) {
          sum += double{x[static_cast<size_t>(i * kMixedInputs + k)]} *
                 values[static_cast<size_t>(row % kMixedRows * kMixedInputs + k)];
        }
        ASSERT_NEAR(found, sum, 1e-4) << "expert " << expert << ", row " << row;
      }
    }
  }

  std::unique_ptr<ops::Backend> backend_;
  MemoryCheckpoint checkpoint_;
  std::mt19937 engine_{5};
};

TEST_P(MixedExperts, AreComputedEachByItsOwnType) {
  const MixedKind kinds[kMixed] = {MixedKind::kBFloat16, MixedKind::kCodes,    MixedKind::kCodes,
                                   MixedKind::kFloat32,  MixedKind::kBFloat16, MixedKind::kCodes};
  std::vector<std::vector<double>> gates, ups;
  for (int32_t e = 0; e < kMixed; ++e) {
    gates.push_back(add(fmt::format("mlp.experts.{}.gate_proj", e), kinds[e], kMixedRows, kMixedInputs));
    ups.push_back(add(fmt::format("mlp.experts.{}.up_proj", e), kinds[e], kMixedRows, kMixedInputs));
  }
  ExpertShape shape{.num_experts = kMixed, .hidden_size = kMixedInputs, .intermediate_size = kMixedRows};
  expect_products(shape, gates, ups);
  shape.experts = {2, 3};  // of a rank that has some of them
  expect_products(shape, gates, ups);
}

TEST_P(MixedExperts, MayHaveOneOfTheirTwoMatricesInCodes) {
  std::vector<std::vector<double>> gates, ups;
  std::vector<float> bias;
  for (int32_t e = 0; e < kMixed; ++e) {
    const std::string expert = fmt::format("mlp.experts.{}.", e);
    gates.push_back(
        add(expert + "gate_proj", e % 3 == 0 ? MixedKind::kBFloat16 : MixedKind::kCodes, kMixedRows, kMixedInputs));
    ups.push_back(
        add(expert + "up_proj", e % 2 == 0 ? MixedKind::kCodes : MixedKind::kBFloat16, kMixedRows, kMixedInputs));
    for (const char* stem : {"gate_proj", "up_proj"}) {
      std::vector<float> own;
      for (int64_t i = 0; i < kMixedRows; ++i)
        own.push_back(static_cast<float>(static_cast<int64_t>(engine_() % 9)) - 4);
      bias.insert(bias.end(), own.begin(), own.end());
      checkpoint_.add(expert + stem + ".bias", DType::kF32, {kMixedRows}, stored_bytes(own));
    }
  }
  expect_products({.num_experts = kMixed, .hidden_size = kMixedInputs, .intermediate_size = kMixedRows, .bias = true},
                  gates, ups, bias);
}

INSTANTIATE_TEST_SUITE_P(Backends, MixedExperts, ::testing::Values("reference", "cpu"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace quire::nn
