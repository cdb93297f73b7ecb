// Weights as AMD's Quark exports them, packed here from its published layouts: "X.weight" in codes, "X.weight_scale",
// and what is rounded of inputs.
#include "nn/quark_weights.h"

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

constexpr int64_t kQuarkRows = 24;
constexpr int64_t kQuarkColumns = 96;

class QuarkWeights : public ::testing::Test {
 protected:
  void configure(std::string_view weight, std::string_view inputs) {
    checkpoint_.set_config({{"quantization_config",
                             {{"quant_method", "quark"},
                              {"exclude", boost::json::array{"lm_head", "*.router"}},
                              {"export",
                               {{"kv_cache_group", boost::json::array()},
                                {"pack_method", "reorder"},
                                {"weight_format", "real_quantized"}}},
                              {"layer_quant_config", boost::json::object()},
                              {"global_quant_config",
                               {{"weight", boost::json::parse(weight)},
                                {"input_tensors", boost::json::parse(inputs)},
                                {"output_tensors", nullptr},
                                {"bias", nullptr}}}}}});
  }

  int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
  float positive() { return std::uniform_real_distribution<float>(0.01f, 0.1f)(engine_); }

  // The weight as it is read, number by number, and what it is held as.
  void expect_values(const std::vector<float>& values, DType form, int64_t rows = kQuarkRows,
                     int64_t columns = kQuarkColumns) {
    const auto backend = ops::make_reference_backend();
    Loader loader(Loader::Mode::kLoad, checkpoint_, *backend);
    const StoredWeight weight = loader.weight({"a.weight", {rows, columns}});
    ASSERT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
    EXPECT_EQ(weight.form(), form) << name(weight.form());
    std::vector<float> found(values.size());
    if (is_weight_format(weight.dtype())) {
      found = loader.floats(weight);
    } else {  // 8-bit floats, by their products with one input each
      const Linear linear(loader, "a", columns, rows);
      for (int64_t k = 0; k < columns; ++k) {
        std::vector<float> x(static_cast<size_t>(columns)), out(static_cast<size_t>(rows));
        x[static_cast<size_t>(k)] = 1;
        linear(BareStep(*backend), ops::ConstView(x.data(), 1, columns), ops::View(out.data(), 1, rows));
        for (int64_t row = 0; row < rows; ++row)
          found[static_cast<size_t>(row * columns + k)] = out[static_cast<size_t>(row)];
      }
    }
    for (size_t i = 0; i < values.size(); ++i) ASSERT_FLOAT_EQ(found[i], values[i]) << i;
  }

  // What a row becomes before it is multiplied.
  ops::InputForm input_form() {
    const auto backend = ops::make_reference_backend();
    Loader loader(Loader::Mode::kPlan, checkpoint_, *backend);
    const StoredWeight weight = loader.weight({"a.weight", {kQuarkRows, kQuarkColumns}});
    EXPECT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
    return weight.input;
  }

  std::string refused() {
    const auto backend = ops::make_reference_backend();
    Loader loader(Loader::Mode::kPlan, checkpoint_, *backend);
    loader.weight({"a.weight", {kQuarkRows, kQuarkColumns}});
    return std::string(loader.finish({}).message());
  }

  // 8-bit floats with these scales.
  std::vector<float> add_float8(const Shape& shape) {
    std::vector<uint8_t> codes;
    std::vector<float> scales, values;
    for (int64_t i = 0; i < shape.num_elements(); ++i) scales.push_back(positive());
    for (int64_t i = 0; i < kQuarkRows * kQuarkColumns; ++i) {
      codes.push_back(static_cast<uint8_t>(between(0, 1) * 128 + between(0, 126)));
      const int e = codes.back() >> 3 & 15, m = codes.back() & 7;
      const float magnitude =
          e == 0 ? std::ldexp(static_cast<float>(m), -9) : std::ldexp(8.0f + static_cast<float>(m), e - 10);
      values.push_back((codes.back() < 128 ? magnitude : -magnitude) *
                       scales[shape.num_elements() == 1 ? 0 : static_cast<size_t>(i / kQuarkColumns)]);
    }
    checkpoint_.add("a.weight", DType::kF8E4M3, {kQuarkRows, kQuarkColumns}, std::move(codes));
    checkpoint_.add("a.weight_scale", DType::kF32, shape, stored_bytes(scales));
    return values;
  }

  std::vector<float> add_int8(const Shape& shape) {
    std::vector<int8_t> codes, zeros(static_cast<size_t>(shape.num_elements()));
    std::vector<float> scales, values;
    for (int64_t i = 0; i < shape.num_elements(); ++i) scales.push_back(positive());
    for (int64_t i = 0; i < kQuarkRows * kQuarkColumns; ++i) {
      codes.push_back(static_cast<int8_t>(between(-128, 127)));
      values.push_back(static_cast<float>(codes.back()) *
                       scales[shape.num_elements() == 1 ? 0 : static_cast<size_t>(i / kQuarkColumns)]);
    }
    checkpoint_.add("a.weight", DType::kI8, {kQuarkRows, kQuarkColumns}, stored_bytes(codes));
    checkpoint_.add("a.weight_scale", DType::kF32, shape, stored_bytes(scales));
    checkpoint_.add("a.weight_zero_point", DType::kI8, shape, stored_bytes(zeros));
    return values;
  }

  // Codes of 4 bits in groups of 32, in words along the outputs.
  std::vector<float> add_int4(bool is_signed) {
    constexpr int64_t kGroup = 32, kGroups = kQuarkColumns / kGroup;
    constexpr int kOutputsOfWord[8] = {0, 2, 4, 6, 1, 3, 5, 7};  // of a word, from its lowest bits on
    const int least = is_signed ? -8 : 0;
    std::vector<int> codes, zeros;
    std::vector<uint16_t> scales;
    for (int64_t i = 0; i < kQuarkRows * kQuarkColumns; ++i) codes.push_back(between(least, least + 15));
    for (int64_t i = 0; i < kQuarkRows * kGroups; ++i) {
      zeros.push_back(is_signed ? 0 : between(0, 15));
      scales.push_back(float_to_half(positive()));
    }
    const auto words = [&](const std::vector<int>& of, int64_t lines) {  // of [rows, lines]
      std::vector<uint32_t> packed;
      for (int64_t line = 0; line < lines; ++line) {
        for (int64_t word = 0; word < kQuarkRows / 8; ++word) {
          uint32_t bits = 0;
          for (int i = 0; i < 8; ++i)
            bits |= static_cast<uint32_t>(of[static_cast<size_t>((word * 8 + kOutputsOfWord[i]) * lines + line)] & 15)
                    << 4 * i;
          packed.push_back(bits);
        }
      }
      return stored_bytes(packed);
    };
    std::vector<uint16_t> turned;
    for (int64_t group = 0; group < kGroups; ++group) {
      for (int64_t row = 0; row < kQuarkRows; ++row)
        turned.push_back(scales[static_cast<size_t>(row * kGroups + group)]);
    }
    checkpoint_.add("a.weight", DType::kI32, {kQuarkColumns, kQuarkRows / 8}, words(codes, kQuarkColumns));
    checkpoint_.add("a.weight_scale", DType::kF16, {kGroups, kQuarkRows}, stored_bytes(turned));
    checkpoint_.add("a.weight_zero_point", DType::kI32, {kGroups, kQuarkRows / 8}, words(zeros, kGroups));
    std::vector<float> values;
    for (int64_t i = 0; i < kQuarkRows * kQuarkColumns; ++i) {
      const auto at = static_cast<size_t>(i / kQuarkColumns * kGroups + i % kQuarkColumns / kGroup);
      values.push_back(static_cast<float>(codes[static_cast<size_t>(i)] - zeros[at]) * half_to_float(scales[at]));
    }
    return values;
  }

  std::vector<float> add_mxfp4() {
    constexpr float kNumbers[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    std::vector<uint8_t> codes, exponents;
    std::vector<float> values;
    for (int64_t i = 0; i < kQuarkRows * kQuarkColumns / 2; ++i) codes.push_back(static_cast<uint8_t>(between(0, 255)));
    for (int64_t i = 0; i < kQuarkRows * kQuarkColumns / 32; ++i)
      exponents.push_back(static_cast<uint8_t>(between(118, 130)));
    for (int64_t i = 0; i < kQuarkRows * kQuarkColumns; ++i) {
      const int code = codes[static_cast<size_t>(i / 2)] >> i % 2 * 4 & 15;
      values.push_back(
          std::ldexp((code < 8 ? 1.0f : -1.0f) * kNumbers[code % 8], exponents[static_cast<size_t>(i / 32)] - 127));
    }
    checkpoint_.add("a.weight", DType::kU8, {kQuarkRows, kQuarkColumns / 2}, codes);
    checkpoint_.add("a.weight_scale", DType::kU8, {kQuarkRows, kQuarkColumns / 32}, exponents);
    return values;
  }

  MemoryCheckpoint checkpoint_;
  std::mt19937_64 engine_{7};
};

constexpr std::string_view kQuarkFloat8 = R"({"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": false})";
constexpr std::string_view kQuarkFloat8Rows =
    R"({"dtype": "fp8_e4m3", "qscheme": "per_channel", "ch_axis": 0, "is_dynamic": false, "symmetric": true})";
constexpr std::string_view kQuarkMx = R"({"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "ch_axis": -1,
    "scale_format": "e8m0", "scale_calculation_mode": "even", "is_dynamic": false})";

TEST_F(QuarkWeights, OfEightBitFloatsHaveOneScaleOrOneARow) {
  configure(kQuarkFloat8, "null");
  expect_values(add_float8({}), DType::kF8E4M3);
  checkpoint_ = MemoryCheckpoint();
  configure(kQuarkFloat8Rows, "null");
  expect_values(add_float8({kQuarkRows}), DType::kF8E4M3);
}

TEST_F(QuarkWeights, OfWholeNumbersHaveOneScaleOrOneARow) {
  configure(R"({"dtype": "int8", "qscheme": "per_tensor", "symmetric": true, "is_dynamic": false})", "null");
  expect_values(add_int8({}), DType::kI8_32);
  checkpoint_ = MemoryCheckpoint();
  configure(R"({"dtype": "int8", "qscheme": "per_channel", "ch_axis": 0, "symmetric": true, "is_dynamic": false})",
            "null");
  expect_values(add_int8({kQuarkRows}), DType::kI8_32);
}

TEST_F(QuarkWeights, OfFourBitsLieAlongTheOutputs) {
  for (const bool is_signed : {true, false}) {
    checkpoint_ = MemoryCheckpoint();
    configure(is_signed ? R"({"dtype": "int4", "qscheme": "per_group", "group_size": 32, "symmetric": true})"
                        : R"({"dtype": "uint4", "qscheme": "per_group", "group_size": 32, "symmetric": false})",
              "null");
    expect_values(add_int4(is_signed), DType::kU4_32);
  }
}

TEST_F(QuarkWeights, OfFourBitFloatsHaveExponents) {
  configure(kQuarkMx, "null");
  expect_values(add_mxfp4(), DType::kMXFP4);
}

TEST_F(QuarkWeights, InputsAreRoundedAsIsSaid) {
  configure(kQuarkFloat8, kQuarkFloat8);
  add_float8({});
  checkpoint_.add("a.input_scale", DType::kF32, {}, stored_bytes(std::vector<float>{0.25f}));
  EXPECT_EQ(input_form(), (ops::InputForm{.rounding = ops::RowRounding::kFloat8, .scale = 0.25f}));
  checkpoint_ = MemoryCheckpoint();
  configure(kQuarkFloat8Rows, R"({"dtype": "fp8_e4m3", "qscheme": "per_channel", "ch_axis": 1, "is_dynamic": true})");
  add_float8({kQuarkRows});
  EXPECT_EQ(input_form(), (ops::InputForm{.rounding = ops::RowRounding::kFloat8}));
  checkpoint_ = MemoryCheckpoint();
  configure(R"({"dtype": "int8", "qscheme": "per_tensor", "symmetric": true})",
            R"({"dtype": "int8", "qscheme": "per_tensor", "symmetric": false, "is_dynamic": false})");
  add_int8({});
  checkpoint_.add("a.input_scale", DType::kF32, {}, stored_bytes(std::vector<float>{0.5f}));
  checkpoint_.add("a.input_zero_point", DType::kI8, {}, stored_bytes(std::vector<int8_t>{-7}));
  EXPECT_EQ(input_form(), (ops::InputForm{.rounding = ops::RowRounding::kInt8, .scale = 0.5f, .zero = -7}));
  checkpoint_ = MemoryCheckpoint();
  configure(kQuarkMx, R"({"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0",
                     "scale_calculation_mode": "even", "is_dynamic": true})");
  add_mxfp4();
  EXPECT_EQ(input_form(), (ops::InputForm{.rounding = ops::RowRounding::kMxFloat4, .group = 32}));
}

TEST_F(QuarkWeights, WhatIsElsewhereThanItShouldBeIsSaidByName) {
  configure(kQuarkFloat8, "null");
  add_int8({});
  EXPECT_THAT(refused(), HasSubstr("a.weight is I8; expected what its group's format float-quantized stores"));
  checkpoint_ = MemoryCheckpoint();
  configure(kQuarkFloat8, kQuarkFloat8);
  add_float8({});
  EXPECT_THAT(refused(), HasSubstr("a.input_scale is missing; expected one number"));
  checkpoint_.add("a.input_rotation", DType::kI8, {2, 2}, std::vector<uint8_t>(4));
  EXPECT_THAT(refused(), HasSubstr("a.input_rotation: inputs that are rotated"));
}

}  // namespace
}  // namespace quire::nn
