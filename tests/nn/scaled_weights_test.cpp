// Weights of 8-bit floats with scales beside them, against sums in double precision.
#include "nn/scaled_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include <fmt/format.h>

#include "nn/expert_linear.h"
#include "nn/linear.h"
#include "nn/loader.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/reference/reference_backend.h"
#include "tests/nn/bare_step.h"
#include "tests/nn/memory_checkpoint.h"

namespace quire::nn {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 40;
constexpr int64_t kColumns = 72;
constexpr int64_t kBlockRows = 16;
constexpr int64_t kBlockColumns = 32;

double number_of(uint8_t code) {
  const int exponent = code >> 3 & 15;
  const double magnitude = exponent == 0 ? std::ldexp(code & 7, -9) : std::ldexp(1.0 + (code & 7) / 8.0, exponent - 7);
  return code & 0x80 ? -magnitude : magnitude;
}

float as_bfloat16(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

enum class Scaling { kTensor, kRow, kBlock };

class ScaledWeights : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "reference") {
      backend_ = ops::make_reference_backend();
      return;
    }
    auto made = ops::make_cpu_backend(
        {.threads = 2, .isa = parse_choice<Isa>(GetParam()).value(), .activation_dtype = ActivationDType::kFloat32});
    if (!made.ok()) GTEST_SKIP() << "this machine lacks " << GetParam();
    backend_ = std::move(*made);
  }

  int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
  float positive() { return std::uniform_real_distribution<float>(0.01f, 0.1f)(engine_); }

  // "<name>.weight" [rows, columns] with its scales; the values that it stands for.
  std::vector<double> add(const std::string& name, Scaling scaling, const char* ending, int64_t rows = kRows,
                          int64_t columns = kColumns) {
    std::vector<uint8_t> codes;
    for (int64_t i = 0; i < rows * columns; ++i)
      codes.push_back(static_cast<uint8_t>(between(0, 1) * 128 + between(0, 126)));
    Shape shape = {1};
    if (scaling == Scaling::kRow) shape = {rows, 1};
    if (scaling == Scaling::kBlock)
      shape = {(rows + kBlockRows - 1) / kBlockRows, (columns + block_columns_ - 1) / block_columns_};
    std::vector<float> scales;
    for (int64_t i = 0; i < shape.num_elements(); ++i) scales.push_back(positive());
    std::vector<double> values;
    for (int64_t i = 0; i < rows * columns; ++i) {
      const int64_t row = i / columns;
      const int64_t block = row / kBlockRows * shape[shape.rank() - 1] + i % columns / block_columns_;
      const float scale = scales[static_cast<size_t>(scaling == Scaling::kTensor ? 0
                                                     : scaling == Scaling::kRow  ? row
                                                                                 : block)];
      const double value = number_of(codes[static_cast<size_t>(i)]) * scale;
      const bool is_widened = scaling == Scaling::kBlock && block_columns_ % 128 != 0;
      values.push_back(is_widened ? as_bfloat16(static_cast<float>(value)) : value);
    }
    checkpoint_.add(name + ".weight", DType::kF8E4M3, {rows, columns}, std::move(codes));
    checkpoint_.add(name + ending, DType::kF32, shape, stored_bytes(scales));
    return values;
  }

  std::vector<float> inputs(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> x;
    for (int64_t i = 0; i < count; ++i) x.push_back(normal(engine_));
    return x;
  }

  // Every row of x with every row of the values.
  static void expect_products(const std::vector<float>& out, const std::vector<float>& x,
                              const std::vector<double>& values, int64_t columns = kColumns) {
    const auto rows = static_cast<int64_t>(values.size()) / columns;
    for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
      double sum = 0;
      double size = 0;
      for (int64_t k = 0; k < columns; ++k) {
        const double term =
            x[static_cast<size_t>(i / rows * columns + k)] * values[static_cast<size_t>(i % rows * columns + k)];
        sum += term;
        size += std::abs(term);
      }
      ASSERT_NEAR(out[static_cast<size_t>(i)], sum, 1e-5 * size) << "output " << i;
    }
  }

  std::unique_ptr<ops::Backend> backend_;
  MemoryCheckpoint checkpoint_;
  int64_t block_columns_ = kBlockColumns;
  std::mt19937_64 engine_{std::random_device{}()};
};

TEST_P(ScaledWeights, ProductsAreThoseOfCodesTimesScales) {
  checkpoint_.set_config({{"quantization_config", {{"weight_block_size", {kBlockRows, kBlockColumns}}}}});
  const std::vector<float> x = inputs(3 * kColumns);
  for (const Scaling scaling : {Scaling::kTensor, Scaling::kRow, Scaling::kBlock}) {
    const std::string name = "w" + std::to_string(static_cast<int>(scaling));
    const std::vector<double> values =
        add(name, scaling, scaling == Scaling::kBlock ? ".weight_scale_inv" : ".weight_scale");
    Loader plan(Loader::Mode::kPlan, checkpoint_, *backend_);
    const Linear planned(plan, name, kColumns, kRows);
    Loader loader(Loader::Mode::kLoad, checkpoint_, *backend_);
    const Linear linear(loader, name, kColumns, kRows);
    EXPECT_EQ(plan.bytes(), loader.bytes());
    EXPECT_EQ(loader.widened().to_string().empty(), scaling != Scaling::kBlock);
    std::vector<float> out(3 * kRows);
    linear(BareStep(*backend_), ops::ConstView(x.data(), 3, kColumns), ops::View(out.data(), 3, kRows));
    expect_products(out, x, values);
  }
}

TEST_P(ScaledWeights, BlocksOf128ColumnsAndOfWholeTimesThatStayOf8Bits) {
  constexpr int64_t kWide = 300;
  for (const int64_t block_columns : {128, 256}) {
    block_columns_ = block_columns;
    checkpoint_.set_config({{"quantization_config", {{"weight_block_size", {kBlockRows, block_columns}}}}});
    const std::string name = "w" + std::to_string(block_columns);
    std::vector<double> values = add(name + ".gate", Scaling::kBlock, ".weight_scale_inv", kRows, kWide);
    const std::vector<double> up = add(name + ".up", Scaling::kBlock, ".weight_scale_inv", kRows, kWide);
    values.insert(values.end(), up.begin(), up.end());
    Loader plan(Loader::Mode::kPlan, checkpoint_, *backend_);
    Loader loader(Loader::Mode::kLoad, checkpoint_, *backend_);
    const std::vector<Linear::Part> parts = {{name + ".gate", kRows, false}, {name + ".up", kRows, false}};
    const Linear planned(plan, parts, kWide);
    const Linear linear(loader, parts, kWide);
    EXPECT_EQ(plan.bytes(), loader.bytes());
    EXPECT_EQ(loader.bytes(), backend_->packed_bytes(DType::kF8E4M3_128, 2 * kRows, kWide));
    EXPECT_EQ(loader.widened().to_string(), "");
    const std::vector<float> x = inputs(3 * kWide);
    std::vector<float> out(3 * 2 * kRows);
    linear(BareStep(*backend_), ops::ConstView(x.data(), 3, kWide), ops::View(out.data(), 3, 2 * kRows));
    expect_products(out, x, values, kWide);
  }
}

// MXFP8: an exponent for every 32 columns, and nothing in the configuration that says so.
TEST_P(ScaledWeights, ExponentsArePowersOfTwoOf32Columns) {
  constexpr int64_t kExponents = (kColumns + 31) / 32;
  std::vector<uint8_t> codes;
  std::vector<uint8_t> exponents;
  for (int64_t i = 0; i < 2 * kRows * kExponents; ++i) exponents.push_back(static_cast<uint8_t>(between(110, 130)));
  std::vector<std::vector<double>> values(2);
  for (int64_t i = 0; i < 2 * kRows * kColumns; ++i) {
    codes.push_back(static_cast<uint8_t>(between(0, 1) * 128 + between(0, 126)));
    const int64_t row = i / kColumns;
    const uint8_t exponent = exponents[static_cast<size_t>(row * kExponents + i % kColumns / 32)];
    values[static_cast<size_t>(row / kRows)].push_back(std::ldexp(number_of(codes.back()), exponent - 127));
  }
  const auto half = [](const std::vector<uint8_t>& all, size_t which) {
    const auto begin = all.begin() + static_cast<ptrdiff_t>(which * all.size() / 2);
    return std::vector<uint8_t>(begin, begin + static_cast<ptrdiff_t>(all.size() / 2));
  };
  for (size_t i = 0; i < 2; ++i) {
    checkpoint_.add("w" + std::to_string(i) + ".weight", DType::kF8E4M3, {kRows, kColumns}, half(codes, i));
    checkpoint_.add("w" + std::to_string(i) + ".weight_scale", DType::kU8, {kRows, kExponents}, half(exponents, i));
  }
  checkpoint_.add("experts.gate_up_proj", DType::kF8E4M3, {2, kRows, kColumns}, codes);
  checkpoint_.add("experts.gate_up_proj_scale", DType::kU8, {2, kRows, kExponents}, exponents);
  checkpoint_.add("experts.down_proj", DType::kF32, {2, kColumns, kRows / 2},
                  std::vector<uint8_t>(kColumns * kRows * sizeof(float)));
  Loader loader(Loader::Mode::kLoad, checkpoint_, *backend_);
  const std::vector<float> x = inputs(2 * kColumns);
  for (size_t i = 0; i < 2; ++i) {
    const Linear linear(loader, "w" + std::to_string(i), kColumns, kRows);
    std::vector<float> out(2 * kRows);
    linear(BareStep(*backend_), ops::ConstView(x.data(), 2, kColumns), ops::View(out.data(), 2, kRows));
    expect_products(out, x, values[i]);
  }
  EXPECT_EQ(loader.bytes(), 2 * backend_->packed_bytes(DType::kF8E4M3_32, kRows, kColumns));
  EXPECT_EQ(loader.widened().to_string(), "");
  const ExpertShape shape{.num_experts = 2, .hidden_size = kColumns, .intermediate_size = kRows / 2};
  const ExpertLinear experts = ExpertLinear::gate_and_up(loader, "", shape);
  const ExpertLinear down = ExpertLinear::down(loader, "", shape);
  ASSERT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
  const int32_t offsets[] = {0, 1, 2};
  std::vector<float> out(2 * kRows);
  experts(BareStep(*backend_), ops::ConstView(x.data(), 2, kColumns), offsets, ops::View(out.data(), 2, kRows));
  for (size_t e = 0; e < 2; ++e) {
    const auto begin = static_cast<ptrdiff_t>(e);
    expect_products({out.begin() + begin * kRows, out.begin() + (begin + 1) * kRows},
                    {x.begin() + begin * kColumns, x.begin() + (begin + 1) * kColumns}, values[e]);
  }

  MemoryCheckpoint another;
  another.add("w.weight", DType::kF8E4M3, {kRows, kColumns}, half(codes, 0));
  another.add("w.weight_scale", DType::kU8, {kRows, kExponents + 1},
              std::vector<uint8_t>(static_cast<size_t>(kRows * (kExponents + 1))));
  Loader refuses(Loader::Mode::kLoad, another, *backend_);
  const Linear linear(refuses, "w", kColumns, kRows);
  EXPECT_THAT(refuses.finish({}).message(), HasSubstr("an exponent for every 32 columns"));
}

// As compressed-tensors writes it: inputs have exponents of their own, of the same groups.
TEST_P(ScaledWeights, InputsOfMxfp8HaveExponentsToo) {
  const boost::json::value config = boost::json::parse(R"({"quantization_config": {
      "quant_method": "compressed-tensors", "format": "mxfp8-quantized", "config_groups": {"group_0": {
          "targets": ["Linear"],
          "weights": {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "symmetric": true,
                      "dynamic": false, "scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"},
          "input_activations": {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32,
                                "symmetric": true, "dynamic": true, "scale_dtype": "torch.uint8"}}}}})");
  checkpoint_.set_config(config.as_object());
  checkpoint_.add("w.weight", DType::kF8E4M3, {kRows, 64}, std::vector<uint8_t>(kRows * 64, 0x38));  // 1
  checkpoint_.add("w.weight_scale", DType::kU8, {kRows, 2}, std::vector<uint8_t>(kRows * 2, 127));
  Loader loader(Loader::Mode::kLoad, checkpoint_, *backend_);
  EXPECT_EQ(loader.weight({"w.weight", {kRows, 64}}).input,
            (ops::InputForm{.rounding = ops::RowRounding::kMxFloat8, .group = 32}));
  const Linear linear(loader, "w", 64, kRows);
  ASSERT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
  std::vector<float> x(64, 0.0f);
  x[0] = 1.0f;
  x[1] = 0x1.1p-2f;    // of three bits of fraction: 2^-2
  x[40] = 0x1.1p-20f;  // the only one of its group
  std::vector<float> out(kRows);
  linear(BareStep(*backend_), ops::ConstView(x.data(), 1, 64), ops::View(out.data(), 1, kRows));
  for (const float value : out) EXPECT_EQ(value, 1.25f + 0x1p-20f);
}

TEST_P(ScaledWeights, PartsWithScalesOfTheirOwnAreOneProduct) {
  std::vector<double> values = add("mlp.gate_proj", Scaling::kTensor, ".weight_scale");
  const std::vector<double> up = add("mlp.up_proj", Scaling::kRow, ".weight_scale");
  values.insert(values.end(), up.begin(), up.end());
  checkpoint_.add("mlp.up_proj.input_scale", DType::kF32, {1}, stored_bytes(std::vector<float>{2}));
  Loader loader(Loader::Mode::kLoad, checkpoint_, *backend_);
  const Linear linear(loader, {{"mlp.gate_proj", kRows, false}, {"mlp.up_proj", kRows, false}}, kColumns);
  EXPECT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
  const std::vector<float> x = inputs(kColumns);
  std::vector<float> out(2 * kRows);
  linear(BareStep(*backend_), ops::ConstView(x.data(), 1, kColumns), ops::View(out.data(), 1, 2 * kRows));
  expect_products(out, x, values);
}

TEST_P(ScaledWeights, ExpertsHaveScalesOfTheirOwn) {
  // Groups may have blocks of other shapes, told in either way.
  boost::json::value config = boost::json::parse(R"({"quantization_config": {
      "quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {
          "group_0": {"targets": ["lm_head"], "weights": {"num_bits": 8, "type": "float", "strategy": "block",
                                                          "block_structure": [1, 3]}},
          "group_1": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "block"}}}}})");
  config.at_pointer("/quantization_config/config_groups/group_1/weights").as_object()["block_structure"] =
      fmt::format("{}x{}", kBlockRows, kBlockColumns);
  checkpoint_.set_config(config.as_object());
  std::vector<std::vector<double>> down;
  for (const char* expert : {"experts.0.", "experts.1."}) {
    add(expert + std::string("gate_proj"), Scaling::kBlock, ".weight_scale");
    add(expert + std::string("up_proj"), Scaling::kBlock, ".weight_scale");
    down.push_back(add(expert + std::string("down_proj"), Scaling::kBlock, ".weight_scale", kColumns, kRows));
  }
  Loader loader(Loader::Mode::kLoad, checkpoint_, *backend_);
  const ExpertShape shape{.num_experts = 2, .hidden_size = kColumns, .intermediate_size = kRows};
  const ExpertLinear gate_and_up = ExpertLinear::gate_and_up(loader, "", shape);
  const ExpertLinear second = ExpertLinear::down(loader, "", shape);
  ASSERT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
  const std::vector<float> x = inputs(2 * kRows);
  const int32_t offsets[] = {0, 1, 2};
  std::vector<float> out(2 * kColumns);
  second(BareStep(*backend_), ops::ConstView(x.data(), 2, kRows), offsets, ops::View(out.data(), 2, kColumns));
  for (size_t e = 0; e < 2; ++e) {
    const auto begin = static_cast<ptrdiff_t>(e);
    expect_products({out.begin() + begin * kColumns, out.begin() + (begin + 1) * kColumns},
                    {x.begin() + begin * kRows, x.begin() + (begin + 1) * kRows}, down[e], kRows);
  }
}

// "X.gate_up_proj" [2, 2 kRows, kColumns], both experts' gate above their up, and its scales; the values of each
// expert.
std::vector<std::vector<double>> add_stack(MemoryCheckpoint& checkpoint, const Shape& scales_shape, int64_t block_rows,
                                           int64_t block_columns, const std::function<int(int, int)>& between) {
  constexpr int64_t kStackRows = 2 * kRows;
  std::vector<float> scales;
  for (int64_t i = 0; i < scales_shape.num_elements(); ++i) scales.push_back(0.01f * static_cast<float>(i + 1));
  std::vector<uint8_t> codes;
  std::vector<std::vector<double>> values(2);
  const int64_t scales_of_row = (kColumns + block_columns - 1) / block_columns;
  for (int64_t i = 0; i < 2 * kStackRows * kColumns; ++i) {
    codes.push_back(static_cast<uint8_t>(between(0, 1) * 128 + between(0, 126)));
    const int64_t row = i / kColumns;
    const float scale = scales[static_cast<size_t>(row / block_rows * scales_of_row + i % kColumns / block_columns)];
    const double value = number_of(codes.back()) * scale;
    const bool is_widened = block_columns < kColumns;
    values[static_cast<size_t>(row / kStackRows)].push_back(is_widened ? as_bfloat16(static_cast<float>(value))
                                                                       : value);
  }
  checkpoint.add("experts.gate_up_proj", DType::kF8E4M3, {2, kStackRows, kColumns}, std::move(codes));
  checkpoint.add("experts.gate_up_proj_scale_inv", DType::kF32, scales_shape, stored_bytes(scales));
  return values;
}

TEST_P(ScaledWeights, StacksOfExpertsHaveScalesOfEachMatrixRowOrBlock) {
  constexpr int64_t kStackRows = 2 * kRows;
  struct Case {
    Shape scales;
    int64_t block_rows;
    int64_t block_columns;
  };
  for (const Case& one : {Case{{2}, kStackRows, kColumns}, Case{{2, 1, 1}, kStackRows, kColumns},
                          Case{{2, kStackRows, 1}, 1, kColumns}, Case{{2, 5, 3}, 16, 32}}) {
    SCOPED_TRACE(one.scales.to_string());
    MemoryCheckpoint checkpoint;
    checkpoint.set_config({{"quantization_config", {{"weight_block_size", {kBlockRows, kBlockColumns}}}}});
    const auto values = add_stack(checkpoint, one.scales, one.block_rows, one.block_columns,
                                  [&](int low, int high) { return between(low, high); });
    checkpoint.add("experts.down_proj", DType::kF32, {2, kColumns, kRows},
                   std::vector<uint8_t>(2 * kColumns * kRows * 4));
    Loader plan(Loader::Mode::kPlan, checkpoint, *backend_);
    Loader loader(Loader::Mode::kLoad, checkpoint, *backend_);
    const ExpertShape shape{.num_experts = 2, .hidden_size = kColumns, .intermediate_size = kRows};
    const ExpertLinear planned = ExpertLinear::gate_and_up(plan, "", shape);
    const ExpertLinear linear = ExpertLinear::gate_and_up(loader, "", shape);
    const ExpertLinear down = ExpertLinear::down(loader, "", shape);
    ASSERT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
    const std::vector<float> x = inputs(2 * kColumns);
    const int32_t offsets[] = {0, 1, 2};
    std::vector<float> out(2 * kStackRows);
    linear(BareStep(*backend_), ops::ConstView(x.data(), 2, kColumns), offsets, ops::View(out.data(), 2, kStackRows));
    for (size_t e = 0; e < 2; ++e) {
      const auto begin = static_cast<ptrdiff_t>(e);
      expect_products({out.begin() + begin * kStackRows, out.begin() + (begin + 1) * kStackRows},
                      {x.begin() + begin * kColumns, x.begin() + (begin + 1) * kColumns}, values[e]);
    }
  }
}

TEST_P(ScaledWeights, TheOtherEightBitsAreHalvesWithoutTheirLowerByte) {
  std::vector<uint8_t> codes;
  std::vector<double> plain;
  std::vector<double> scaled;
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    const int exponent = between(1, 20);
    const int fraction = between(0, 3);
    const int sign = between(0, 1);
    codes.push_back(static_cast<uint8_t>(sign << 7 | exponent << 2 | fraction));
    const double value = (sign == 1 ? -1 : 1) * std::ldexp(1.0 + fraction / 4.0, exponent - 15);
    plain.push_back(value);
    scaled.push_back(as_bfloat16(static_cast<float>(value * (0.25 + static_cast<double>(i / kColumns) / 64))));
  }
  std::vector<float> scales;
  for (int64_t row = 0; row < kRows; ++row) scales.push_back(0.25f + static_cast<float>(row) / 64);
  checkpoint_.add("plain.weight", DType::kF8E5M2, {kRows, kColumns}, codes);
  checkpoint_.add("scaled.weight", DType::kF8E5M2, {kRows, kColumns}, codes);
  checkpoint_.add("scaled.weight_scale", DType::kF32, {kRows, 1}, stored_bytes(scales));
  Loader plan(Loader::Mode::kPlan, checkpoint_, *backend_);
  Loader loader(Loader::Mode::kLoad, checkpoint_, *backend_);
  for (const auto& [name, values] :
       {std::pair<std::string, const std::vector<double>&>{"plain", plain}, {"scaled", scaled}}) {
    const Linear planned(plan, name, kColumns, kRows);
    const Linear linear(loader, name, kColumns, kRows);
    const std::vector<float> x = inputs(kColumns);
    std::vector<float> out(kRows);
    linear(BareStep(*backend_), ops::ConstView(x.data(), 1, kColumns), ops::View(out.data(), 1, kRows));
    expect_products(out, x, values);
  }
  EXPECT_EQ(plan.bytes(), loader.bytes());
  EXPECT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
}

TEST_P(ScaledWeights, ACodeOfNanSpoilsItsRowAlone) {
  std::vector<uint8_t> codes(2 * 32, 0x38);  // 1
  codes[32 + 5] = 0xff;
  checkpoint_.add("w.weight", DType::kF8E4M3, {2, 32}, codes);
  checkpoint_.add("w.weight_scale", DType::kF32, {2}, stored_bytes(std::vector<float>{0.5f, 0.5f}));
  Loader loader(Loader::Mode::kLoad, checkpoint_, *backend_);
  const Linear linear(loader, "w", 32, 2);
  const std::vector<float> x(32, 1.0f);
  float out[2] = {};
  linear(BareStep(*backend_), ops::ConstView(x.data(), 1, static_cast<int64_t>(x.size())), ops::View(out, 1, 2));
  EXPECT_EQ(out[0], 16.0f);
  EXPECT_TRUE(std::isnan(out[1]));
}

TEST_P(ScaledWeights, ACodeOfNanSpoilsItsRowOfABlockAlone) {
  constexpr int64_t kWide = 256;
  std::vector<uint8_t> codes(2 * kWide, 0x38);  // 1
  codes[kWide + 130] = 0x7f;
  checkpoint_.set_config({{"quantization_config", {{"weight_block_size", {128, 128}}}}});
  checkpoint_.add("w.weight", DType::kF8E4M3, {2, kWide}, codes);
  checkpoint_.add("w.weight_scale_inv", DType::kF32, {1, 2}, stored_bytes(std::vector<float>{0.5f, 0.25f}));
  Loader loader(Loader::Mode::kLoad, checkpoint_, *backend_);
  const Linear linear(loader, "w", kWide, 2);
  const std::vector<float> x(kWide, 1.0f);
  float out[2] = {};
  linear(BareStep(*backend_), ops::ConstView(x.data(), 1, static_cast<int64_t>(x.size())), ops::View(out, 1, 2));
  EXPECT_EQ(out[0], 96.0f);
  EXPECT_TRUE(std::isnan(out[1]));
}

INSTANTIATE_TEST_SUITE_P(Backends, ScaledWeights, ::testing::Values("reference", "portable", "avx2", "avx512"),
                         [](const auto& test) { return test.param; });

// What finish() says of a weight [kRows, kColumns] with these scales.
Status loaded_with(const std::string& ending, DType dtype, const Shape& shape, const boost::json::object& config = {}) {
  MemoryCheckpoint checkpoint;
  checkpoint.set_config(config);
  checkpoint.add("w.weight", DType::kF8E4M3, {kRows, kColumns}, std::vector<uint8_t>(kRows * kColumns));
  checkpoint.add("w" + ending, dtype, shape,
                 std::vector<uint8_t>(static_cast<size_t>(shape.num_elements() * info(dtype).block_bytes)));
  const auto backend = ops::make_reference_backend();
  Loader loader(Loader::Mode::kLoad, checkpoint, *backend);
  const Linear linear(loader, "w", kColumns, kRows);
  return loader.finish({});
}

TEST(ScaledWeightErrors, SayWhatWasFoundAndWhatWasExpected) {
  const boost::json::object blocks = {{"quantization_config", {{"weight_block_size", {16, 32}}}}};
  EXPECT_TRUE(loaded_with(".weight_scale_inv", DType::kBF16, {3, 3}, blocks).ok());
  EXPECT_TRUE(loaded_with(".weight_scale", DType::kBF16, {kRows, 1}).ok());
  EXPECT_THAT(loaded_with(".input_scale", DType::kF32, {1}).message(),
              HasSubstr("there is neither w.weight_scale nor w.weight_scale_inv"));
  EXPECT_THAT(loaded_with(".weight_scale", DType::kI32, {1}).message(), HasSubstr("w.weight_scale is I32; supported"));
  EXPECT_THAT(loaded_with(".weight_scale", DType::kF32, {2}).message(),
              HasSubstr("w.weight_scale is [2] for a weight [40, 72]: expected one number, one a row, or"));
  EXPECT_THAT(loaded_with(".weight_scale", DType::kF32, {3, 2}, blocks).message(),
              HasSubstr("expected [3, 3], one for every 16 x 32"));
}

TEST(ScaledWeightErrors, AStackInBlocksThatCrossItsMatricesIsRefused) {
  MemoryCheckpoint checkpoint;
  checkpoint.set_config({{"quantization_config", {{"weight_block_size", {32, 32}}}}});
  checkpoint.add("experts.gate_up_proj", DType::kF8E4M3, {2, 80, kColumns}, std::vector<uint8_t>(2 * 80 * kColumns));
  checkpoint.add("experts.gate_up_proj_scale_inv", DType::kF32, {2, 3, 3}, stored_bytes(std::vector<float>(18, 1)));
  const auto backend = ops::make_reference_backend();
  Loader loader(Loader::Mode::kLoad, checkpoint, *backend);
  const ExpertLinear linear =
      ExpertLinear::gate_and_up(loader, "", {.num_experts = 2, .hidden_size = kColumns, .intermediate_size = 40});
  EXPECT_THAT(loader.finish({}).message(), HasSubstr("matrices of 80 rows in blocks of 32; supported: whole blocks"));
}

TEST(ScaledWeightErrors, ATableOfEightBitFloatsIsRefused) {
  MemoryCheckpoint checkpoint;
  checkpoint.add("embed.weight", DType::kF8E4M3, {4, 8}, std::vector<uint8_t>(32));
  checkpoint.add("embed.weight_scale", DType::kF32, {1}, stored_bytes(std::vector<float>{1}));
  const auto backend = ops::make_reference_backend();
  Loader loader(Loader::Mode::kPlan, checkpoint, *backend);
  loader.table("embed.weight", {4, 8});
  EXPECT_THAT(loader.finish({}).message(), HasSubstr("a table of F8_E4M3 (embed.weight)"));
}

}  // namespace
}  // namespace quire::nn
