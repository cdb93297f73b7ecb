// Weights of HQQ, packed here by its definition out of codes, zeros and scales that are known: what is read is scale
// times (code less zero), bit for bit, and products are of that.
#include "nn/hqq_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
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

constexpr int64_t kHqqRows = 40;

struct HqqCase {
  std::string name;
  int64_t columns;
  int64_t group;
  int bits;
  int axis;
  DType numbers;  // of scales and zeros
  DType form;
  bool viewed_as_floats = false;
};

void PrintTo(const HqqCase& one, std::ostream* out) {
  *out << one.name;
}

template <typename T>
std::vector<uint8_t> raw(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// A weight [kHqqRows, columns] whose groups lie as the case says.
class HqqWeight {
 public:
  HqqWeight(const HqqCase& one, uint32_t seed) : case_(one) {
    std::mt19937 engine(seed);
    const auto between = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine); };
    for (int64_t i = 0; i < count(); ++i) codes_.push_back(between(0, (1 << one.bits) - 1));
    for (int64_t i = 0; i < groups(); ++i) {
      scales_.push_back(static_cast<float>(between(1024, 2047)) * 0x1p-15f);
      // Fractions that F16 has, up to the largest code; F32's have more places.
      float zero = static_cast<float>(between(0, 2047)) / 2048.0f * static_cast<float>(1 << one.bits);
      if (one.numbers == DType::kF32) zero += 0x1p-20f * static_cast<float>(between(1, 15));
      zeros_.push_back(zero);
    }
  }

  int64_t count() const { return kHqqRows * case_.columns; }
  int64_t groups() const { return count() / case_.group; }
  float value(int64_t row, int64_t column) const {
    const int64_t at = row * case_.columns + column;
    const auto group = static_cast<size_t>(case_.axis == 1 ? at / case_.group : at % groups());
    return (static_cast<float>(codes_[static_cast<size_t>(at)]) - zeros_[group]) * scales_[group];
  }

  void add(MemoryCheckpoint& checkpoint, const std::string& module) const {
    const int64_t lines = case_.axis == 1 ? groups() : case_.group;
    const int64_t stride = count() / lines;
    const int codes = case_.bits == 3 ? 10 : 8 / case_.bits;
    const int64_t word_lines = (lines + codes - 1) / codes;
    std::vector<uint32_t> words(static_cast<size_t>(word_lines * stride));
    for (int64_t line = 0; line < lines; ++line) {
      for (int64_t i = 0; i < stride; ++i) {
        const int shift = (codes - 1 - static_cast<int>(line / word_lines)) * case_.bits;
        words[static_cast<size_t>(line % word_lines * stride + i)] |=
            static_cast<uint32_t>(codes_[static_cast<size_t>(line * stride + i)]) << shift;
      }
    }
    std::vector<uint8_t> bytes(words.begin(), words.end());
    if (case_.bits == 3) {
      checkpoint.add(module + ".W_q", DType::kI32, {word_lines, stride}, raw(words));
    } else if (case_.viewed_as_floats) {
      checkpoint.add(module + ".W_q", DType::kF16, {word_lines, stride / 2}, bytes);
    } else {
      checkpoint.add(module + ".W_q", DType::kU8, {word_lines, stride}, bytes);
    }
    const Shape shape = case_.axis == 1 ? Shape{groups(), 1} : Shape{1, groups()};
    checkpoint.add(module + ".scale", case_.numbers, shape, numbers(scales_));
    checkpoint.add(module + ".zero", case_.numbers, shape, numbers(zeros_));
    add_number(checkpoint, module + ".axis", case_.axis);
    add_number(checkpoint, module + ".nbits", case_.bits);
    add_number(checkpoint, module + ".group_size", static_cast<int32_t>(case_.group));
    checkpoint.add(module + ".shape", DType::kI64, {2}, raw(std::vector<int64_t>{kHqqRows, case_.columns}));
    const std::string packing = case_.bits == 3 ? "3bit_32" : std::to_string(case_.bits) + "bit_u8";
    checkpoint.add(module + ".packing", DType::kU8, {static_cast<int64_t>(packing.size())},
                   std::vector<uint8_t>(packing.begin(), packing.end()));
    checkpoint.add(module + ".quant_zero", DType::kU8, {}, {0});
    checkpoint.add(module + ".quant_scale", DType::kU8, {}, {0});
    checkpoint.add(module + ".view_as_float", DType::kU8, {}, {case_.viewed_as_floats ? uint8_t{1} : uint8_t{0}});
  }

  static void add_number(MemoryCheckpoint& checkpoint, const std::string& name, int32_t number) {
    checkpoint.add(name, DType::kI32, {}, raw(std::vector<int32_t>{number}));
  }

 private:
  std::vector<uint8_t> numbers(const std::vector<float>& values) const {
    if (case_.numbers == DType::kF32) return raw(values);
    std::vector<uint16_t> halves;
    for (const float value : values) halves.push_back(float_to_half(value));
    return raw(halves);
  }

  const HqqCase& case_;
  std::vector<int> codes_;     // flat
  std::vector<float> scales_;  // of each group
  std::vector<float> zeros_;
};

const std::vector<HqqCase> kHqqCases = {
    {"FourBits", 128, 64, 4, 1, DType::kF16, DType::kU4_64_HZ},
    {"FourBitsOfWholeRows", 128, 128, 4, 1, DType::kF16, DType::kU4_64_HZ},
    {"FourBitsInShortGroups", 96, 32, 4, 1, DType::kF16, DType::kU4_32_FZ},
    {"FourBitsOfFloats", 128, 64, 4, 1, DType::kF32, DType::kU4_32_FZ},
    {"FourBitsViewedAsFloats", 128, 64, 4, 1, DType::kF16, DType::kU4_64_HZ, true},
    {"FourBitsInGroupsThatAreNoBlocks", 96, 8, 4, 1, DType::kF16, DType::kF32},
    {"ThreeBits", 128, 64, 3, 1, DType::kF16, DType::kU4_64_HZ},
    {"TwoBits", 128, 64, 2, 1, DType::kF16, DType::kU4_64_HZ},
    {"OneBit", 128, 64, 1, 1, DType::kF16, DType::kU4_64_HZ},
    {"EightBits", 128, 64, 8, 1, DType::kF16, DType::kI8_64_HZ},
    {"EightBitsOfFloats", 128, 64, 8, 1, DType::kF32, DType::kF32},
    {"FourBitsDown", 128, 8, 4, 0, DType::kF16, DType::kF32},
    {"ThreeBitsDown", 128, 20, 3, 0, DType::kF16, DType::kF32},
    {"FourBitsDownInTurnsThatGoOverARow", 128, 16, 4, 0, DType::kF16, DType::kF32},
    {"EightBitsDown", 128, 40, 8, 0, DType::kF32, DType::kF32},
};

class HqqWeights : public ::testing::TestWithParam<HqqCase> {};

TEST_P(HqqWeights, AreReadBitForBitAndHeldInTheirOwnWidth) {
  const HqqCase& one = GetParam();
  const HqqWeight made(one, 1);
  MemoryCheckpoint checkpoint;
  made.add(checkpoint, "a");
  const auto backend = ops::make_reference_backend();
  Loader loader(Loader::Mode::kLoad, checkpoint, *backend);
  const StoredWeight weight = loader.weight({"a.weight", {kHqqRows, one.columns}});
  ASSERT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
  EXPECT_EQ(weight.form(), one.form) << name(weight.form());
  const std::vector<float> values = loader.floats(weight);
  for (int64_t row = 0; row < kHqqRows; ++row) {
    for (int64_t column = 0; column < one.columns; ++column) {
      ASSERT_EQ(values[static_cast<size_t>(row * one.columns + column)], made.value(row, column))
          << row << ", " << column;
    }
  }
}

TEST_P(HqqWeights, GiveTheProductsOfWhatTheyStandFor) {
  const HqqCase& one = GetParam();
  const HqqWeight parts[] = {{one, 2}, {one, 3}};
  for (const char* isa : {"reference", "portable", "avx2", "avx512"}) {
    SCOPED_TRACE(isa);
    auto backend = ops::make_reference_backend();
    if (std::string_view(isa) != "reference") {
      auto made = ops::make_cpu_backend(
          {.threads = 2, .isa = parse_choice<Isa>(isa).value(), .activation_dtype = ActivationDType::kFloat32});
      if (!made.ok()) continue;
      backend = std::move(*made);
    }
    MemoryCheckpoint checkpoint;
    parts[0].add(checkpoint, "q_proj");
    parts[1].add(checkpoint, "k_proj");
    Loader plan(Loader::Mode::kPlan, checkpoint, *backend);
    Loader loader(Loader::Mode::kLoad, checkpoint, *backend);
    const std::vector<Linear::Part> layers = {{"q_proj", kHqqRows, false}, {"k_proj", kHqqRows, false}};
    const Linear planned(plan, layers, one.columns);
    const Linear linear(loader, layers, one.columns);
    ASSERT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
    EXPECT_EQ(plan.bytes(), loader.bytes());
    std::normal_distribution<float> normal;
    std::mt19937 engine(4);
    constexpr int64_t kInputs = 7;
    std::vector<float> x(static_cast<size_t>(kInputs * one.columns));
    for (float& number : x) number = normal(engine);
    std::vector<float> out(static_cast<size_t>(kInputs * 2 * kHqqRows));
    linear(BareStep(*backend), ops::ConstView(x.data(), kInputs, one.columns),
           ops::View(out.data(), kInputs, 2 * kHqqRows));
    for (int64_t i = 0; i < kInputs; ++i) {
      for (int64_t row = 0; row < 2 * kHqqRows; ++row) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < one.columns; ++k) {
          const double term = double{x[static_cast<size_t>(i * one.columns + k)]} *
                              double{parts[row / kHqqRows].value(row % kHqqRows, k)};
          sum += term;
          size += std::fabs(term);
        }
        ASSERT_NEAR(out[static_cast<size_t>(i * 2 * kHqqRows + row)], sum, 1e-6 * size) << i << ", " << row;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, HqqWeights, ::testing::ValuesIn(kHqqCases),
                         [](const auto& test) { return test.param.name; });

// What loading a weight of kHqqCases[0] says after `change`.
Status after(const std::function<void(MemoryCheckpoint&)>& change) {
  MemoryCheckpoint checkpoint;
  HqqWeight(kHqqCases[0], 5).add(checkpoint, "a");
  change(checkpoint);
  const auto backend = ops::make_reference_backend();
  Loader loader(Loader::Mode::kLoad, checkpoint, *backend);
  loader.weight({"a.weight", {kHqqRows, 128}});
  return loader.finish({});
}

TEST(BadHqqWeights, AreRefusedByTheNameOfTheTensor) {
  const auto number = [](const char* name, int32_t value) {
    return [=](MemoryCheckpoint& to) { to.replace(name, DType::kI32, {}, raw(std::vector<int32_t>{value})); };
  };
  const std::pair<std::function<void(MemoryCheckpoint&)>, const char*> bad[] = {
      {number("a.axis", 2), "a.axis is 2; expected 0 or 1"},
      {number("a.group_size", 0), "a.group_size is 0; expected a divisor"},
      {number("a.group_size", 48), "a.group_size is 48; expected a divisor"},
      {number("a.group_size", 256), "a.group_size is 256 along axis 1"},
      {number("a.group_size", 32), "a.scale"},
      {number("a.axis", 0), "a.scale"},
      {number("a.quant_zero", 1), "a.quant_zero is 1; supported: 0"},
      {[](MemoryCheckpoint& to) {
         to.replace("a.packing", DType::kU8, {3}, {'5', 'b', 't'});
       },
       "a.packing is \"5bt\"; supported: 8bit_u8"},
      {[](MemoryCheckpoint& to) {
         to.replace("a.shape", DType::kI64, {2}, raw(std::vector<int64_t>{128, kHqqRows}));
       },
       "a.shape says [128, 40]; expected [40, 128]"},
      {[](MemoryCheckpoint& to) {
         to.replace("a.scale", DType::kF16, {1, 80}, std::vector<uint8_t>(160));
       },
       "a.scale"},
      {[](MemoryCheckpoint& to) {
         to.replace("a.zero", DType::kU8, {80, 1}, std::vector<uint8_t>(80));
       },
       "a.zero is U8; expected F32, F16, BF16"},
  };
  for (const auto& [change, message] : bad) {
    const Status status = after(change);
    ASSERT_FALSE(status.ok()) << message;
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
  EXPECT_TRUE(after([](MemoryCheckpoint&) {}).ok());
}

}  // namespace
}  // namespace quire::nn
