// Codes of matrices that a family keeps transposed, as GPT-2's Conv1D does: [inputs, outputs] with one scale, as
// compressed-tensors writes them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "nn/linear.h"
#include "nn/loader.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/reference/reference_backend.h"
#include "tensor/stored_values.h"
#include "tests/nn/bare_step.h"
#include "tests/nn/memory_checkpoint.h"

namespace quire::nn {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kTurnedInputs = 64;

boost::json::object turned_config(bool is_float) {
  return {{"quantization_config",
           {{"quant_method", "compressed-tensors"},
            {"format", is_float ? "float-quantized" : "int-quantized"},
            {"config_groups",
             {{"g",
               {{"targets", boost::json::array{"Linear", "re:.*c_.*"}},
                {"weights", {{"num_bits", 8}, {"type", is_float ? "float" : "int"}, {"strategy", "channel"}}}}}}}}}};
}

class TransposedCodes : public ::testing::TestWithParam<bool> {
 protected:
  // [kTurnedInputs, outputs] and one scale; the values that they stand for [outputs, kTurnedInputs].
  std::vector<double> add(const std::string& module, int64_t outputs, const Shape& scales = {1}) {
    std::vector<uint8_t> codes;
    std::vector<double> values(static_cast<size_t>(kTurnedInputs * outputs));
    for (int64_t i = 0; i < kTurnedInputs * outputs; ++i) {
      codes.push_back(static_cast<uint8_t>(engine_() % 2 * 128 + engine_() % 120));
      const uint8_t code[] = {codes.back()};
      const double number = GetParam() ? number_of(code[0]) : static_cast<double>(static_cast<int8_t>(code[0]));
      values[static_cast<size_t>(i % outputs * kTurnedInputs + i / outputs)] = number * 0.0625;
    }
    checkpoint_.add(module + ".weight", GetParam() ? DType::kF8E4M3 : DType::kI8, {kTurnedInputs, outputs},
                    std::move(codes));
    checkpoint_.add(module + ".weight_scale", DType::kF32, scales,
                    stored_bytes(std::vector<float>(static_cast<size_t>(scales.num_elements()), 0.0625f)));
    return values;
  }
  static double number_of(uint8_t code) {
    const int e = code >> 3 & 15;
    const double magnitude = e == 0 ? std::ldexp(code & 7, -9) : std::ldexp(8 + (code & 7), e - 10);
    return code < 128 ? magnitude : -magnitude;
  }

  MemoryCheckpoint checkpoint_;
  std::mt19937 engine_{3};
};

TEST_P(TransposedCodes, AreRowsOfTheirColumns) {
  for (const int64_t outputs : {int64_t{96}, kTurnedInputs}) {  // a square, too, is turned
    checkpoint_ = MemoryCheckpoint();
    checkpoint_.set_config(turned_config(GetParam()));
    const std::vector<double> values = add("h.c_attn", outputs);
    for (const char* kind : {"reference", "cpu"}) {
      auto backend = ops::make_reference_backend();
      if (std::string_view(kind) == "cpu")
        backend = ops::make_cpu_backend({.threads = 2, .activation_dtype = ActivationDType::kFloat32}).value();
      Loader loader(Loader::Mode::kLoad, checkpoint_, *backend);
      // What a rank has of it: the outputs from the eighth on.
      const Linear linear(loader,
                          {{.prefix = "h.c_attn", .rows = outputs, .transposed = true, .taken = {{8, outputs - 8}}}},
                          kTurnedInputs);
      ASSERT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
      std::vector<float> x(kTurnedInputs), out(static_cast<size_t>(outputs - 8));
      for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3.0f;
      linear(BareStep(*backend), ops::ConstView(x.data(), 1, kTurnedInputs), ops::View(out.data(), 1, outputs - 8));
      for (int64_t row = 8; row < outputs; ++row) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < kTurnedInputs; ++k) {
          const double term = double{x[static_cast<size_t>(k)]} * values[static_cast<size_t>(row * kTurnedInputs + k)];
          sum += term;
          size += std::fabs(term);
        }
        ASSERT_NEAR(out[static_cast<size_t>(row - 8)], sum, 1e-6 * size) << row;
      }
    }
  }
}

TEST_P(TransposedCodes, WithScalesOfEitherSideAreRefused) {
  for (const Shape& scales : {Shape{kTurnedInputs, 1}, Shape{96, 1}}) {
    checkpoint_ = MemoryCheckpoint();
    checkpoint_.set_config(turned_config(GetParam()));
    add("h.c_attn", 96, scales);
    const auto backend = ops::make_reference_backend();
    Loader loader(Loader::Mode::kPlan, checkpoint_, *backend);
    loader.weight({"h.c_attn.weight", {96, kTurnedInputs}, /*transposed=*/true});
    EXPECT_THAT(loader.finish({}).message(), HasSubstr("for codes that are stored transposed; supported: one number"));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, TransposedCodes, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Floats" : "WholeNumbers"; });

}  // namespace
}  // namespace quire::nn
