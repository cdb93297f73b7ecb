#include "nn/expert_linear.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include <fmt/format.h>

#include "ops/cpu/cpu_backend.h"
#include "tests/nn/bare_step.h"
#include "tests/nn/memory_checkpoint.h"

namespace quire::nn {
namespace {

constexpr int32_t kExperts = 3;
constexpr int64_t kHidden = 64;
constexpr int64_t kInner = 32;

// Numbers [experts][rows][columns] and the bytes of any arrangement of them.
class Weights {
 public:
  Weights(int64_t rows, int64_t columns, uint64_t seed) : rows_(rows), columns_(columns) {
    std::mt19937_64 engine(seed);
    std::normal_distribution<float> normal;
    values_.resize(static_cast<size_t>(kExperts * rows * columns));
    for (float& value : values_) value = normal(engine);
  }
  float at(int64_t expert, int64_t row, int64_t column) const {
    return values_[static_cast<size_t>((expert * rows_ + row) * columns_ + column)];
  }
  std::vector<uint8_t> expert(int64_t index) const {
    return bytes(rows_ * columns_, [&](int64_t i) { return at(index, i / columns_, i % columns_); });
  }
  std::vector<uint8_t> stack() const {
    return bytes(kExperts * rows_ * columns_, [&](int64_t i) { return values_[static_cast<size_t>(i)]; });
  }
  std::vector<uint8_t> transposed_stack() const {
    return bytes(kExperts * rows_ * columns_, [&](int64_t i) {
      const int64_t inner = i % (rows_ * columns_);
      return at(i / (rows_ * columns_), inner % rows_, inner / rows_);
    });
  }
  template <typename Value>
  static std::vector<uint8_t> bytes(int64_t count, const Value& value) {
    std::vector<uint8_t> out(static_cast<size_t>(count) * sizeof(float));
    for (int64_t i = 0; i < count; ++i) {
      const float number = value(i);
      std::memcpy(out.data() + static_cast<size_t>(i) * sizeof(float), &number, sizeof(number));
    }
    return out;
  }

 private:
  int64_t rows_;
  int64_t columns_;
  std::vector<float> values_;
};

class ExpertLinearTest : public ::testing::Test {
 protected:
  ExpertLinearTest() : backend_(std::move(ops::make_cpu_backend({.threads = 2})).value()) {}

  // Some rows for each expert through gate and up: what does not depend on the spelling.
  std::vector<float> product(const MemoryCheckpoint& checkpoint, const ExpertShape& shape) {
    Loader plan(Loader::Mode::kPlan, checkpoint, *backend_);
    ExpertLinear::gate_and_up(plan, "mlp.", shape);
    Loader loader(Loader::Mode::kLoad, checkpoint, *backend_);
    const ExpertLinear linear = ExpertLinear::gate_and_up(loader, "mlp.", shape);
    EXPECT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
    EXPECT_EQ(plan.bytes(), loader.bytes()) << "planned and held";
    const std::vector<int32_t> offsets = {0, 2, 2, 5};
    std::vector<float> x(static_cast<size_t>(5 * kHidden));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50) / 50.0f;
    std::vector<float> out(static_cast<size_t>(5 * 2 * kInner));
    linear(BareStep(*backend_), ops::ConstView(x.data(), offsets.back(), kHidden), offsets.data(),
           ops::View(out.data(), offsets.back(), 2 * kInner));
    return out;
  }

  ExpertShape shape_{.num_experts = kExperts, .hidden_size = kHidden, .intermediate_size = kInner};
  std::unique_ptr<ops::Backend> backend_;
};

TEST_F(ExpertLinearTest, EverySpellingOfTheSameNumbersGivesTheSameBits) {
  const Weights gate(kInner, kHidden, 1);
  const Weights up(kInner, kHidden, 2);
  MemoryCheckpoint named;
  MemoryCheckpoint numbered;
  for (int64_t e = 0; e < kExperts; ++e) {
    named.add(fmt::format("mlp.experts.{}.gate_proj.weight", e), DType::kF32, {kInner, kHidden}, gate.expert(e));
    named.add(fmt::format("mlp.experts.{}.up_proj.weight", e), DType::kF32, {kInner, kHidden}, up.expert(e));
    numbered.add(fmt::format("mlp.experts.{}.w1.weight", e), DType::kF32, {kInner, kHidden}, gate.expert(e));
    numbered.add(fmt::format("mlp.experts.{}.w3.weight", e), DType::kF32, {kInner, kHidden}, up.expert(e));
  }
  MemoryCheckpoint stacks;
  stacks.add("mlp.experts.gate_proj.weight", DType::kF32, {kExperts, kInner, kHidden}, gate.stack());
  stacks.add("mlp.experts.up_proj.weight", DType::kF32, {kExperts, kInner, kHidden}, up.stack());

  const auto fused_at = [&](int64_t expert, int64_t row, int64_t column) {
    return row < kInner ? gate.at(expert, row, column) : up.at(expert, row - kInner, column);
  };
  constexpr int64_t kSize = 2 * kInner * kHidden;
  MemoryCheckpoint fused;
  fused.add("mlp.experts.gate_up_proj", DType::kF32, {kExperts, 2 * kInner, kHidden},
            Weights::bytes(kExperts * kSize,
                           [&](int64_t i) { return fused_at(i / kSize, i % kSize / kHidden, i % kHidden); }));
  MemoryCheckpoint turned;
  turned.add("mlp.experts.gate_up_proj", DType::kF32, {kExperts, kHidden, 2 * kInner},
             Weights::bytes(kExperts * kSize, [&](int64_t i) {
               const int64_t column = i % kSize / (2 * kInner);
               const int64_t row = i % (2 * kInner);
               return row % 2 == 0 ? gate.at(i / kSize, row / 2, column) : up.at(i / kSize, row / 2, column);
             }));

  const std::vector<float> expected = product(named, shape_);
  EXPECT_NE(expected[0], 0.0f);
  EXPECT_EQ(product(numbered, shape_), expected);
  EXPECT_EQ(product(stacks, shape_), expected);
  EXPECT_EQ(product(fused, shape_), expected);
  shape_.stacks_transposed = true;
  shape_.stacks_interleaved = true;
  EXPECT_EQ(product(turned, shape_), expected);
}

TEST_F(ExpertLinearTest, Mxfp4InBlocksAndScalesIsTheSameAsInWholeBlocks) {
  std::mt19937 engine(3);
  const auto code = [&engine] { return static_cast<uint8_t>(engine() % 16); };
  constexpr int64_t kRowBlocks = kHidden / 32;
  std::vector<uint8_t> gate;  // whole blocks, as GGUF has them
  std::vector<uint8_t> up;
  std::vector<uint8_t> blocks;  // rows of gate and up in turns, pairs of neighbours in a byte
  std::vector<uint8_t> scales;
  for (int64_t row = 0; row < kExperts * 2 * kInner; ++row) {
    std::vector<uint8_t>& whole = row % 2 == 0 ? gate : up;
    for (int64_t block = 0; block < kRowBlocks; ++block) {
      std::vector<uint8_t> codes;
      for (int i = 0; i < 32; ++i) codes.push_back(code());
      scales.push_back(static_cast<uint8_t>(120 + engine() % 6));
      whole.push_back(scales.back());
      for (size_t i = 0; i < 16; ++i) {
        whole.push_back(static_cast<uint8_t>(codes[i] | codes[i + 16] << 4));
        blocks.push_back(static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4));
      }
    }
  }
  MemoryCheckpoint whole;
  whole.add("mlp.experts.gate_proj.weight", DType::kMXFP4, {kExperts, kInner, kHidden}, gate);
  whole.add("mlp.experts.up_proj.weight", DType::kMXFP4, {kExperts, kInner, kHidden}, up);
  MemoryCheckpoint apart;
  apart.add("mlp.experts.gate_up_proj_blocks", DType::kU8, {kExperts, 2 * kInner, kRowBlocks, 16}, blocks);
  apart.add("mlp.experts.gate_up_proj_scales", DType::kU8, {kExperts, 2 * kInner, kRowBlocks}, scales);
  const std::vector<float> expected = product(whole, shape_);
  shape_.stacks_transposed = true;
  shape_.stacks_interleaved = true;
  EXPECT_EQ(product(apart, shape_), expected);
}

TEST_F(ExpertLinearTest, WhatIsMissingIsSaidByName) {
  MemoryCheckpoint nothing;
  Loader missing(Loader::Mode::kLoad, nothing, *backend_);
  ExpertLinear::gate_and_up(missing, "mlp.", shape_);
  EXPECT_NE(missing.finish({}).message().find("mlp.experts.0.gate_proj.weight"), std::string::npos)
      << missing.finish({}).message();
}

}  // namespace
}  // namespace quire::nn
