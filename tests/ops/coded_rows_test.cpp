// Rows of 8-bit floats with a scale each (ops/rows.h), which a card's norms and activations make for products of such
// weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/reference/kv_values.h"
#include "tests/ops/ops_test_support.h"

namespace quire::ops {
namespace {

using testing::Random;
using testing::same_bits;
using testing::StoredWeights;

class CodedRows : public ::testing::Test {
 protected:
  void SetUp() override {
    if (backend_ == nullptr) GTEST_SKIP() << "this machine lacks cuda";
  }

  // Memory of coded rows, of which nothing is known.
  static std::vector<uint8_t> memory_of(int64_t num_rows, int64_t columns) {
    return std::vector<uint8_t>(static_cast<size_t>(num_rows * columns + num_rows * 4), 0xff);
  }
  static OutRows out_of(std::vector<uint8_t>& memory) { return {memory.data(), DType::kF8E4M3}; }

  // What is to become of floats: codes of x times 448 over the row's largest magnitude, to nearest even.
  static std::vector<uint8_t> coded(const std::vector<float>& x, int64_t columns) {
    const auto num_rows = static_cast<int64_t>(x.size()) / columns;
    std::vector<uint8_t> memory = memory_of(num_rows, columns);
    for (int64_t row = 0; row < num_rows; ++row) {
      float most = 0;
      for (int64_t i = 0; i < columns; ++i) most = std::max(most, std::fabs(x[static_cast<size_t>(row * columns + i)]));
      const float scale = most / 448.0f;
      const float inverse = scale > 0 ? std::min(1.0f / scale, 3.4e38f) : 1.0f;
      for (int64_t i = 0; i < columns; ++i) {
        const auto at = static_cast<size_t>(row * columns + i);
        memory[at] = static_cast<uint8_t>(reference::float_to_code(DType::kF8E4M3, x[at] * inverse));
      }
      std::memcpy(memory.data() + num_rows * columns + row * 4, &scale, sizeof(scale));
    }
    return memory;
  }

  Random random_{19};
  std::unique_ptr<Backend> backend_ = testing::make_backend("cuda");
};

TEST_F(CodedRows, OfANormAreItsFloatsRounded_cuda) {
  for (const int64_t size : {16, 256, 272, 2048, 4096, 5120, 8192}) {
    for (const bool adds : {false, true}) {
      const int64_t rows = size < 1000 ? 11 : 3;
      const std::vector<float> weight = random_.normals(size);
      const std::vector<float> delta = random_.normals(rows * size);
      std::vector<float> hidden = random_.normals(rows * size, 3.0f);
      std::fill_n(hidden.begin() + size, adds ? 0 : size, 0.0f);  // nothing is larger than 0
      std::vector<float> same_hidden = hidden;
      std::vector<float> floats(hidden.size());
      std::vector<uint8_t> memory = memory_of(rows, size);
      const auto norm = [&](std::vector<float>& of, OutRows out) {
        (*backend_)(RmsNormArgs{.hidden = of.data(),
                                .delta = adds ? delta.data() : nullptr,
                                .delta_scale = 0.5f,
                                .weight = weight.data(),
                                .num_tokens = rows,
                                .size = size,
                                .out = out});
      };
      norm(hidden, floats.data());
      norm(same_hidden, out_of(memory));
      backend_->synchronise();
      EXPECT_EQ(memory, coded(floats, size)) << size << (adds ? ", with a delta" : "");
      EXPECT_TRUE(same_bits(hidden.data(), same_hidden.data(), rows * size)) << size;
    }
  }
}

TEST_F(CodedRows, OfAnActivationAreItsFloatsRounded_cuda) {
  for (const int64_t size : {16, 48, 272, 3072, 4096, 5120, 8192}) {
    for (const auto& [function, gated] :
         {std::pair(Activation::kSilu, true), std::pair(Activation::kGeluTanh, false)}) {
      constexpr int64_t kRows = 3;
      const int64_t in_size = gated ? 2 * size : size;
      std::vector<float> in = random_.normals(kRows * in_size, 2.0f);
      std::fill_n(in.begin() + in_size, size, 0.0f);
      std::vector<uint16_t> halves(in.size());
      for (size_t i = 0; i < in.size(); ++i) {
        halves[i] = float_to_bfloat16(in[i]);
        in[i] = bfloat16_to_float(halves[i]);
      }
      std::vector<float> floats(static_cast<size_t>(kRows * size));
      const auto activate = [&](Rows from, OutRows out) {
        (*backend_)(ActivationArgs{
            .function = function, .gated = gated, .in = from, .num_tokens = kRows, .size = size, .out = out});
      };
      activate(in.data(), floats.data());
      for (const Rows& from : {Rows(in.data()), Rows(halves.data(), DType::kBF16)}) {
        std::vector<uint8_t> memory = memory_of(kRows, size);
        activate(from, out_of(memory));
        backend_->synchronise();
        EXPECT_EQ(memory, coded(floats, size)) << size << " of " << name(from.dtype) << (gated ? ", gated" : "");
      }
    }
  }
}

TEST_F(CodedRows, GiveTheProductsOfTheFloatsThatTheyWere_cuda) {
  constexpr int64_t kOutputs = 48;
  for (const int64_t columns : {768, 1024}) {
    const StoredWeights stored(DType::kF8E4M3, kOutputs, columns, random_);
    const TensorView view = stored.view();
    const auto weight = backend_->pack({&view, 1}).value();
    const std::vector<float> bias = random_.normals(kOutputs);
    for (const int64_t rows : {33, 70}) {
      ASSERT_EQ(backend_->input_dtype(*weight, rows), DType::kF8E4M3) << "it is not multiplied in 8 bits";
      const std::vector<float> x = random_.normals(rows * columns);
      const std::vector<uint8_t> codes = coded(x, columns);
      const auto product = [&](Rows from) {
        std::vector<float> out(static_cast<size_t>(rows * kOutputs));
        (*backend_)(LinearArgs{.x = from,
                               .x_stride = columns,
                               .num_rows = rows,
                               .weight = weight.get(),
                               .bias = bias.data(),
                               .out = out.data(),
                               .out_stride = kOutputs});
        backend_->synchronise();
        return out;
      };
      EXPECT_EQ(product({codes.data(), DType::kF8E4M3}), product(x.data())) << rows << " rows of " << columns;
    }
  }
}

}  // namespace
}  // namespace quire::ops
