// Kernels of a card one by one, against the reference: what they compute, not how a backend calls them.
#include "ops/cuda/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/quantise.h"
#include "ops/reference/kv_values.h"
#include "ops/reference/reference_backend.h"
#include "ops/reference/rounded_rows.h"
#include "tests/ops/ops_test_support.h"
#include "tests/ops_cuda/on_card.h"

namespace quire::ops::cuda {
namespace {

using ops::testing::largest_difference;
using ops::testing::Random;
using ops::testing::same_bits;
using testing::OnCard;

constexpr float kUntouched = 12345.0f;

struct Size {
  int64_t size;
  int64_t tokens;
};

std::vector<Size> sizes() {
  std::vector<Size> all;
  for (const int64_t size : {1, 2, 7, 31, 32, 33, 63, 576, 1537}) {
    for (const int64_t tokens : {1, 3, 40}) all.push_back({size, tokens});
  }
  // Rows that have more threads, or more numbers a thread.
  for (const int64_t size : {3072, 8192, 12288}) all.push_back({size, 2});
  return all;
}

class KernelTest : public ::testing::TestWithParam<Size> {
 protected:
  int64_t size() const { return GetParam().size; }
  int64_t tokens() const { return GetParam().tokens; }
  int64_t count() const { return size() * tokens(); }
  size_t positions(int64_t numbers) const { return static_cast<size_t>(numbers); }

  std::unique_ptr<Backend> reference_ = make_reference_backend();
  Random random_{7};
};

TEST_P(KernelTest, EveryActivationGatedAndPlain) {
  for (const Activation function : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kQuickGelu,
                                    Activation::kRelu, Activation::kRelu2}) {
    for (const bool gated : {false, true}) {
      const std::vector<float> in = random_.normals(count() * (gated ? 2 : 1), 4.0f);
      std::vector<float> expected(positions(count()));
      ActivationArgs args{
          .function = function, .gated = gated, .in = in.data(), .num_tokens = tokens(), .size = size()};
      args.out = expected.data();
      (*reference_)(args);
      const OnCard<float> card_in(in);
      const OnCard<float> out(expected.size(), 0.0f);
      args.in = card_in.data();
      args.out = out.data();
      activate(args, nullptr);
      EXPECT_LT(largest_difference(out.read(), expected), 1e-6) << static_cast<int>(function) << ", gated " << gated;
      if (gated) continue;
      args.out = card_in.data();
      activate(args, nullptr);
      EXPECT_EQ(card_in.read(), out.read());
    }
  }
}

TEST_P(KernelTest, AddsAndScales) {
  for (const float soft_cap : {0.0f, 0.7f, 30.0f}) {
    std::vector<float> hidden = random_.normals(count(), 20.0f);
    const std::vector<float> delta = random_.normals(count());
    const OnCard<float> card_hidden(hidden);
    const OnCard<float> card_delta(delta);
    AddArgs add_args{
        .hidden = hidden.data(), .delta = delta.data(), .delta_scale = 0.5f, .num_tokens = tokens(), .size = size()};
    ScaleArgs scale_args{
        .values = hidden.data(), .scale = 0.25f, .soft_cap = soft_cap, .num_rows = tokens(), .size = size()};
    (*reference_)(add_args);
    add_args.hidden = card_hidden.data();
    add_args.delta = card_delta.data();
    add(add_args, nullptr);
    EXPECT_EQ(card_hidden.read(), hidden);
    (*reference_)(scale_args);
    scale_args.values = card_hidden.data();
    scale(scale_args, nullptr);
    EXPECT_LT(largest_difference(card_hidden.read(), hidden), 1e-6) << soft_cap;
  }
}

TEST_P(KernelTest, XieluOnBothSidesOfZero) {
  std::vector<float> expected = random_.normals(count(), 4.0f);
  const OnCard<float> values(expected);
  XieluArgs args{
      .values = expected.data(), .num_tokens = tokens(), .size = size(), .positive = 0.75f, .negative = 1.25f};
  (*reference_)(args);
  args.values = values.data();
  xielu(args, nullptr);
  EXPECT_LT(largest_difference(values.read(), expected), 2e-6);
}

TEST_P(KernelTest, ClampedSwigluBeyondItsLimitsToo) {
  const std::vector<float> in = random_.normals(2 * count(), 6.0f);
  std::vector<float> expected(positions(count()));
  ClampedSwigluArgs args{
      .in = in.data(), .num_tokens = tokens(), .size = size(), .alpha = 1.5f, .limit = 5.0f, .out = expected.data()};
  (*reference_)(args);
  const OnCard<float> card_in(in);
  const OnCard<float> out(expected.size(), 0.0f);
  args.in = card_in.data();
  args.out = out.data();
  clamped_swiglu(args, nullptr);
  EXPECT_LT(largest_difference(out.read(), expected), 2e-6);
}

TEST_P(KernelTest, CopiesHeadsAndGathersRows) {
  const int64_t heads = 3;
  const std::vector<float> in = random_.normals(tokens() * heads * (size() + 2));
  std::vector<float> expected(positions(tokens() * heads * (size() + 1)), kUntouched);
  CopyHeadsArgs args{.in = in.data(),
                     .in_token_stride = heads * (size() + 2),
                     .in_head_stride = size() + 2,
                     .num_tokens = tokens(),
                     .num_heads = heads,
                     .size = size(),
                     .out = expected.data(),
                     .out_token_stride = size() + 1,
                     .out_head_stride = tokens() * (size() + 1)};
  const OnCard<float> card_in(in);
  const OnCard<float> out(expected);
  (*reference_)(args);
  args.in = card_in.data();
  args.out = out.data();
  copy_heads(args, nullptr);
  EXPECT_EQ(out.read(), expected);

  const std::vector<int32_t> rows = {2, 0, 2};
  const OnCard<int32_t> card_rows(rows);
  const OnCard<float> gathered(positions(3 * size()), 0.0f);
  gather_rows({card_in.data(), size(), card_rows.data(), 3, gathered.data()}, nullptr);
  const std::vector<float> got = gathered.read();
  for (int64_t i = 0; i < 3; ++i) {
    const float* row = in.data() + rows[positions(i)] * size();
    EXPECT_TRUE(same_bits(got.data() + i * size(), row, size()));
  }
}

TEST_P(KernelTest, RmsNormKeepsTheSumAndLeavesWhatIsBetweenTokens) {
  for (const int64_t groups : {1, 3}) {
    for (const bool with_delta : {false, true}) {
      const int64_t stride = groups * size() + 5;
      std::vector<float> hidden = random_.normals(tokens() * stride);
      const std::vector<float> delta = random_.normals(tokens() * groups * size());
      const std::vector<float> weight = random_.normals(size());
      std::vector<float> expected(hidden.size(), kUntouched);
      const OnCard<float> card_hidden(hidden);
      const OnCard<float> card_delta(delta);
      const OnCard<float> card_weight(weight);
      const OnCard<float> out(expected);
      RmsNormArgs args{.hidden = hidden.data(),
                       .delta = with_delta ? delta.data() : nullptr,
                       .delta_scale = 0.22f,
                       .weight = weight.data(),
                       .num_tokens = tokens(),
                       .num_groups = groups,
                       .size = size(),
                       .token_stride = stride,
                       .out = expected.data()};
      (*reference_)(args);
      args.hidden = card_hidden.data();
      args.delta = with_delta ? card_delta.data() : nullptr;
      args.weight = card_weight.data();
      args.out = out.data();
      rms_norm(args, nullptr);
      EXPECT_EQ(card_hidden.read(), hidden);
      const std::vector<float> got = out.read();
      EXPECT_LT(largest_difference(got, expected), 2e-6);
      for (size_t i = 0; i < got.size(); ++i) {
        if (expected[i] == kUntouched) {
          EXPECT_EQ(got[i], kUntouched);
        }
      }
      if (with_delta) continue;
      args.out = args.hidden;
      rms_norm(args, nullptr);
      const std::vector<float> in_place = card_hidden.read();
      EXPECT_EQ(in_place[0], got[0]);
      EXPECT_EQ(in_place[hidden.size() - 6], got[hidden.size() - 6]);
    }
  }
}

TEST_P(KernelTest, LayerNormWithAndWithoutParameters) {
  for (const bool whole : {false, true}) {
    std::vector<float> hidden = random_.normals(count());
    for (float& value : hidden) value += 3.0f;
    const std::vector<float> delta = random_.normals(count());
    const std::vector<float> weight = random_.normals(size());
    const std::vector<float> bias = random_.normals(size());
    std::vector<float> expected(hidden.size());
    const OnCard<float> card_hidden(hidden);
    const OnCard<float> card_delta(delta);
    const OnCard<float> card_weight(weight);
    const OnCard<float> card_bias(bias);
    const OnCard<float> out(expected);
    LayerNormArgs args{.hidden = hidden.data(), .eps = 1e-3f, .num_tokens = tokens(), .size = size()};
    LayerNormArgs card = args;
    args.out = expected.data();
    card.hidden = card_hidden.data();
    card.out = out.data();
    if (whole) {
      args.delta = delta.data();
      args.weight = weight.data();
      args.bias = bias.data();
      card.delta = card_delta.data();
      card.weight = card_weight.data();
      card.bias = card_bias.data();
    }
    (*reference_)(args);
    layer_norm(card, nullptr);
    EXPECT_EQ(card_hidden.read(), hidden);
    EXPECT_LT(largest_difference(out.read(), expected), 2e-6);
  }
}

TEST_P(KernelTest, NormsGiveATokenTheSameBitsAloneAndAmongOthers) {
  const std::vector<float> hidden = random_.normals(count());
  const OnCard<float> card_hidden(hidden);
  const OnCard<float> weight(positions(size()), 1.5f);
  const OnCard<float> all(positions(count()), 0.0f);
  const OnCard<float> alone(positions(size()), 0.0f);
  RmsNormArgs rms{
      .hidden = card_hidden.data(), .weight = weight.data(), .num_tokens = tokens(), .size = size(), .out = all.data()};
  rms_norm(rms, nullptr);
  const int64_t last = (tokens() - 1) * size();
  const std::vector<float> of_all = all.read();
  rms.hidden += last;
  rms.num_tokens = 1;
  rms.out = alone.data();
  rms_norm(rms, nullptr);
  EXPECT_TRUE(same_bits(alone.read().data(), of_all.data() + last, size()));
}

TEST_P(KernelTest, RopeInBothStyles) {
  for (const bool interleaved : {false, true}) {
    const auto half = static_cast<int32_t>(size() / 2);
    const int32_t heads = 3;
    const auto head_dim = static_cast<int32_t>(size());
    const int64_t stride = int64_t{heads} * head_dim + 4;
    std::vector<float> values = random_.normals(tokens() * stride);
    const std::vector<float> table = random_.normals(std::max<int64_t>(1, 50 * 2 * half));
    std::vector<int32_t> where;
    for (int64_t t = 0; t < tokens(); ++t) where.push_back(static_cast<int32_t>(random_.between(0, 49)));
    const OnCard<float> card_values(values);
    const OnCard<float> card_table(table);
    const OnCard<int32_t> card_where(where);
    RopeArgs args{.heads = values.data(),
                  .token_stride = stride,
                  .num_tokens = tokens(),
                  .num_heads = heads,
                  .head_dim = head_dim,
                  .rotary_dim = 2 * half,
                  .interleaved = interleaved,
                  .positions = where.data(),
                  .table = table.data(),
                  .table_positions = 50};
    (*reference_)(args);
    args.heads = card_values.data();
    args.positions = card_where.data();
    args.table = card_table.data();
    rope(args, nullptr);
    EXPECT_LT(largest_difference(card_values.read(), values), 1e-6);
  }
}

// Numbers in 16 bits are those of float32, rounded.
TEST_P(KernelTest, NormsAndActivationsHandOnRowsOf16Bits) {
  const OnCard<float> hidden(random_.normals(count()));
  const OnCard<float> weight(random_.normals(size()));
  const OnCard<float> in(random_.normals(2 * count(), 3.0f));
  const OnCard<float> floats(positions(count()), kUntouched);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const auto rounded = [dtype](const std::vector<float>& values) {
      std::vector<uint16_t> codes;
      for (const float value : values) codes.push_back(reference::float_to_code(dtype, value));
      return codes;
    };
    const OnCard<uint16_t> codes(positions(count()), uint16_t{0});
    RmsNormArgs norm{.hidden = hidden.data(), .weight = weight.data(), .num_tokens = tokens(), .size = size()};
    norm.out = floats.data();
    rms_norm(norm, nullptr);
    norm.out = {codes.data(), dtype};
    rms_norm(norm, nullptr);
    EXPECT_EQ(codes.read(), rounded(floats.read()));

    const OnCard<uint16_t> codes_in(rounded(in.read()));
    std::vector<float> numbers;
    for (const uint16_t code : codes_in.read()) numbers.push_back(reference::code_to_float(dtype, code));
    const OnCard<float> floats_in(numbers);
    ActivationArgs args{.in = floats_in.data(), .num_tokens = tokens(), .size = size(), .out = floats.data()};
    activate(args, nullptr);
    args.in = {codes_in.data(), dtype};
    args.out = {codes.data(), dtype};
    activate(args, nullptr);
    EXPECT_EQ(codes.read(), rounded(floats.read()));
  }
}

TEST_P(KernelTest, RowsOf8BitsAreThoseThatWeightsAreRoundedTo) {
  const int64_t stride = size() + 3;
  const int64_t codes_stride = (size() + 15) / 16 * 16;
  const std::vector<float> x = random_.normals(tokens() * stride, 5.0f);
  std::vector<float> dense;
  for (int64_t i = 0; i < count(); ++i) dense.push_back(x[positions(i / size() * stride + i % size())]);
  const OnCard<float> card_x(x);
  const OnCard<float> card_dense(dense);
  const OnCard<uint8_t> codes(positions(tokens() * codes_stride), uint8_t{0xff});
  const OnCard<float> scales(positions(tokens()), kUntouched);
  round_rows_to_f8(card_x.data(), stride, tokens(), size(), codes.data(), codes_stride, scales.data(), nullptr);
  const int64_t row_bytes = size() + 4;
  const OnCard<uint8_t> weight(positions(tokens() * row_bytes), uint8_t{0});
  quantise_rows(DType::kF8E4M3, card_dense.data(), tokens(), size(), weight.data(), row_bytes, nullptr);
  const OnCard<float> gathered(positions(tokens()), kUntouched);
  gather_row_scales({weight.data(), DType::kF8E4M3, tokens(), size(), row_bytes}, gathered.data(), nullptr);
  EXPECT_EQ(scales.read(), gathered.read());
  const std::vector<uint8_t> got = codes.read();
  const std::vector<uint8_t> expected = weight.read();
  for (int64_t t = 0; t < tokens(); ++t) {
    for (int64_t i = 0; i < codes_stride; ++i) {
      const uint8_t code = i < size() ? expected[positions(t * row_bytes + i)] : uint8_t{0};
      ASSERT_EQ(got[positions(t * codes_stride + i)], code) << t << ", " << i;
    }
  }
}

TEST(RoundBlocksKernel, Every128ColumnsAreRoundedByThemselvesAndRowsOfZerosMakeUpTheRest) {
  constexpr int64_t kTokens = 3;
  constexpr int64_t kPadded = 4;
  constexpr int64_t kBlocks = 11;  // more than a block of threads has warps
  constexpr int64_t kColumns = kBlocks * kScaleColumns;
  constexpr int64_t kStride = kColumns + 3;
  Random random(13);
  std::vector<float> x = random.normals(kTokens * kStride, 5.0f);
  x[kStride + 200] = std::numeric_limits<float>::quiet_NaN();
  const OnCard<float> card_x(x);
  const OnCard<uint8_t> card_codes(kPadded * kColumns, uint8_t{0xff});
  const OnCard<float> card_scales(kPadded * kBlocks, kUntouched);
  round_blocks_to_f8(card_x.data(), kStride, kTokens, kPadded, kColumns, card_codes.data(), card_scales.data(),
                     nullptr);
  const std::vector<uint8_t> codes = card_codes.read();
  const std::vector<float> scales = card_scales.read();
  for (int64_t t = 0; t < kPadded; ++t) {
    for (int64_t b = 0; b < kBlocks; ++b) {
      const float scale = scales[static_cast<size_t>(b * kPadded + t)];
      const uint8_t* got = codes.data() + t * kColumns + b * kScaleColumns;
      if (t == 1 && b == 1) {
        EXPECT_TRUE(std::isnan(scale));
        continue;
      }
      std::vector<float> piece(kScaleColumns);
      if (t < kTokens) std::copy_n(x.begin() + t * kStride + b * kScaleColumns, kScaleColumns, piece.begin());
      std::vector<uint8_t> row(got, got + kScaleColumns);
      row.resize(row.size() + sizeof(scale));
      std::memcpy(row.data() + kScaleColumns, &scale, sizeof(scale));
      EXPECT_EQ(row, reference::rounded_row(DType::kF8E4M3, piece)) << t << ", " << b;
    }
  }
}

// More copies than one launch takes.
TEST(CopyBlocksKernel, CopiesKeysAndValuesAndNothingElse) {
  Random random(12);
  constexpr int64_t kBlocks = 700;
  constexpr int64_t kCopies = 300;
  const KvCacheView shape{.dtype = DType::kF16,
                          .num_blocks = kBlocks,
                          .num_kv_heads = 1,
                          .head_dim = 8,
                          .block_size = 5,
                          .keys_by_token = true};
  const auto floats = static_cast<size_t>(kBlocks * block_bytes(shape) / 4);
  std::vector<std::vector<float>> expected;
  for (int i = 0; i < 4; ++i) expected.push_back(random.normals(static_cast<int64_t>(floats)));
  const OnCard<float> keys(expected[0]);
  const OnCard<float> values(expected[1]);
  const OnCard<float> other_keys(expected[2]);
  const OnCard<float> other_values(expected[3]);
  std::vector<BlockCopy> copies;
  const auto block = static_cast<size_t>(block_bytes(shape) / 4);
  for (int32_t i = 0; i < kCopies; ++i) {
    copies.push_back({(i * 7) % static_cast<int32_t>(kBlocks), static_cast<int32_t>(kBlocks) - 1 - i});
    for (size_t part = 0; part < 2; ++part) {
      const auto from =
          expected[part].begin() + static_cast<ptrdiff_t>(static_cast<size_t>(copies.back().source) * block);
      std::copy_n(
          from, block,
          expected[part + 2].begin() + static_cast<ptrdiff_t>(static_cast<size_t>(copies.back().destination) * block));
    }
  }
  CopyBlocksArgs args{.source = block_memory(shape),
                      .destination = block_memory(shape),
                      .copies = copies.data(),
                      .num_copies = kCopies};
  args.source.parts = {keys.data(), values.data()};
  args.destination.parts = {other_keys.data(), other_values.data()};
  ASSERT_TRUE(copy_blocks(args, nullptr));
  EXPECT_EQ(other_keys.read(), expected[2]);
  EXPECT_EQ(other_values.read(), expected[3]);
  EXPECT_EQ(keys.read(), expected[0]);
  args.destination.parts[0] = other_keys.data() + 1;
  EXPECT_FALSE(copy_blocks(args, nullptr));
}

TEST_P(KernelTest, CombinesExpertsInTheirOrderAndTheSharedOneAsItsGateSays) {
  const std::vector<float> experts = random_.normals(count() * 3);
  const std::vector<float> weights = random_.normals(tokens() * 3);
  const std::vector<float> gate = random_.normals(tokens(), 3.0f);
  std::vector<int32_t> rows(positions(tokens() * 3));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>((i * 5) % rows.size());
  const OnCard<float> card_experts(experts);
  const OnCard<float> card_weights(weights);
  const OnCard<float> card_gate(gate);
  const OnCard<int32_t> card_rows(rows);
  for (const int shared : {0, 1, 2}) {
    std::vector<float> expected = random_.normals(count());  // in place of the shared expert's output
    const OnCard<float> out(expected);
    MoeCombineArgs args{.experts = experts.data(),
                        .rows = rows.data(),
                        .weights = weights.data(),
                        .experts_per_token = 3,
                        .shared = shared > 0 ? expected.data() : nullptr,
                        .shared_gate = shared > 1 ? gate.data() : nullptr,
                        .num_tokens = tokens(),
                        .size = size(),
                        .out = expected.data()};
    (*reference_)(args);
    args.experts = card_experts.data();
    args.rows = card_rows.data();
    args.weights = card_weights.data();
    args.shared = shared > 0 ? out.data() : nullptr;
    args.shared_gate = shared > 1 ? card_gate.data() : nullptr;
    args.out = out.data();
    combine_experts(args, nullptr);
    EXPECT_LT(largest_difference(out.read(), expected), 2e-6);
  }
}

TEST_P(KernelTest, RoundsRowsToNearest) {
  const int64_t stride = size() + 3;
  std::vector<float> x = random_.normals(tokens() * stride);
  x[0] = 1e30f;
  x[x.size() / 2] = -1e-7f;
  const OnCard<float> card_x(x);
  for (const DType to : {DType::kF16, DType::kBF16}) {
    const OnCard<uint16_t> out(positions(count()), uint16_t{0});
    round_rows(card_x.data(), {.stride = stride}, tokens(), size(), to, out.data(), nullptr);
    const std::vector<uint16_t> codes = out.read();
    for (int64_t i = 0; i < count(); ++i) {
      const float value = x[positions(i / size() * stride + i % size())];
      ASSERT_EQ(codes[positions(i)], reference::float_to_code(to, value)) << name(to) << " of " << value;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, KernelTest, ::testing::ValuesIn(sizes()), [](const auto& test) {
  return std::to_string(test.param.size) + "x" + std::to_string(test.param.tokens);
});

// The tail of the normal distribution has few digits left in 1 + erf(x): x Phi(x) keeps them.
TEST(ActivationKernelTest, KeepsItsDigitsFarBelowZero) {
  std::vector<float> x;
  for (float value = -100.0f; value < 100.0f; value += 0.01f) x.push_back(value);
  for (float value = -9.0f; value < 9.0f; value += 0.001f) x.push_back(value);
  const OnCard<float> in(x);
  const OnCard<float> out(x.size(), 0.0f);
  ActivationArgs args{
      .gated = false, .in = in.data(), .num_tokens = 1, .size = static_cast<int64_t>(x.size()), .out = out.data()};
  activate(args, nullptr);
  const std::vector<float> silu = out.read();
  args.function = Activation::kGelu;
  activate(args, nullptr);
  const std::vector<float> gelu = out.read();
  for (size_t i = 0; i < x.size(); ++i) {
    const double value = x[i];
    const double exact_silu = value / (1.0 + std::exp(-value));
    ASSERT_NEAR(silu[i], exact_silu, value < -87.0 ? 1e-36 : 4e-7 * std::fabs(exact_silu)) << value;
    const double exact_gelu = 0.5 * value * std::erfc(-value / std::sqrt(2.0));
    ASSERT_NEAR(gelu[i], exact_gelu, (value < -9.0 ? 1e-4 : 2e-6) * std::fabs(exact_gelu) + 1e-36) << value;
  }
}

TEST(ActivationKernelTest, KeepsNotANumberAndInfinity) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const OnCard<float> in({std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity, 3e38f, -3e38f});
  for (const Activation function : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
    const OnCard<float> out(5, 0.0f);
    activate({.function = function, .gated = false, .in = in.data(), .num_tokens = 1, .size = 5, .out = out.data()},
             nullptr);
    const std::vector<float> got = out.read();
    EXPECT_TRUE(std::isnan(got[0]));
    EXPECT_EQ(got[1], kInfinity);
    EXPECT_EQ(got[3], 3e38f);
    EXPECT_EQ(got[4], 0.0f);
  }
}

// --- routing

// On the card, as the reference's arguments say: weights, rows, tokens and offsets are filled in.
struct Routes {
  std::vector<float> weights;
  std::vector<int32_t> rows;
  std::vector<int32_t> tokens;
  std::vector<int32_t> offsets;
};

Routes routes_of(const MoeRoutingArgs& args, bool on_card) {
  const auto pairs = static_cast<size_t>(args.num_tokens * args.experts_per_token);
  const auto experts = static_cast<size_t>(args.num_experts);
  Routes routes{std::vector<float>(pairs), std::vector<int32_t>(pairs, -1), std::vector<int32_t>(pairs, -1),
                std::vector<int32_t>(experts + 1, -1)};
  MoeRoutingArgs own = args;
  if (!on_card) {
    own.weights = routes.weights.data();
    own.rows = routes.rows.data();
    own.tokens = routes.tokens.data();
    own.offsets = routes.offsets.data();
    (*make_reference_backend())(own);
    return routes;
  }
  const OnCard<float> logits(std::vector<float>(args.logits, args.logits + args.num_tokens * args.num_experts));
  const OnCard<float> bias(args.correction_bias == nullptr
                               ? std::vector<float>()
                               : std::vector<float>(args.correction_bias, args.correction_bias + experts));
  const OnCard<float> weights(routes.weights);
  const OnCard<int32_t> rows(routes.rows);
  const OnCard<int32_t> tokens(routes.tokens);
  const OnCard<int32_t> offsets(routes.offsets);
  const OnCard<uint8_t> scratch(
      static_cast<size_t>(route_scratch_bytes(args.num_tokens, args.num_experts, args.experts_per_token)), uint8_t{77});
  own.logits = logits.data();
  own.correction_bias = args.correction_bias == nullptr ? nullptr : bias.data();
  own.weights = weights.data();
  own.rows = rows.data();
  own.tokens = tokens.data();
  own.offsets = offsets.data();
  route(own, scratch.data(), nullptr);
  return {weights.read(), rows.read(), tokens.read(), offsets.read()};
}

void expect_same_routes(const MoeRoutingArgs& args) {
  const Routes found = routes_of(args, true);
  const Routes expected = routes_of(args, false);
  EXPECT_EQ(found.rows, expected.rows);
  EXPECT_EQ(found.tokens, expected.tokens);
  EXPECT_EQ(found.offsets, expected.offsets);
  EXPECT_LT(largest_difference(found.weights, expected.weights), 2e-6);
}

struct Router {
  RouterScore score;
  GroupScore group_score;
};

class RouteTest : public ::testing::TestWithParam<Router> {};

TEST_P(RouteTest, AgreesWithTheReferenceWhateverTheBatch) {
  Random random(81);
  struct Experts {
    int32_t experts, each, groups, groups_each;
  };
  for (const Experts& sizes : std::vector<Experts>{
           {1, 1, 1, 1}, {8, 2, 1, 1}, {24, 5, 4, 2}, {128, 8, 1, 1}, {256, 8, 8, 4}, {512, 32, 16, 3}}) {
    for (const int64_t tokens : {0, 1, 3, 40, 64, 65, 300}) {
      if (tokens == 300 && sizes.experts > 128) continue;
      const bool with_bias = tokens % 2 == 1;
      SCOPED_TRACE(::testing::Message() << sizes.experts << " experts, " << tokens << " tokens");
      const std::vector<float> logits = random.normals(tokens * sizes.experts, 2.0f);
      const std::vector<float> bias = random.normals(sizes.experts, 0.3f);
      expect_same_routes({.logits = logits.data(),
                          .correction_bias = with_bias ? bias.data() : nullptr,
                          .num_tokens = tokens,
                          .num_experts = sizes.experts,
                          .experts_per_token = sizes.each,
                          .score = GetParam().score,
                          .normalise = with_bias,
                          .scale = 2.5f,
                          .num_groups = sizes.groups,
                          .groups_per_token = sizes.groups_each,
                          .group_score = GetParam().group_score});
    }
  }
}

TEST_P(RouteTest, TheLowerIndexOfEqualOnesComesFirst) {
  Random random(82);
  std::vector<float> logits;
  for (int i = 0; i < 20 * 64; ++i) logits.push_back(static_cast<float>(random.between(0, 2)));
  expect_same_routes({.logits = logits.data(),
                      .num_tokens = 20,
                      .num_experts = 64,
                      .experts_per_token = 9,
                      .score = GetParam().score,
                      .num_groups = 8,
                      .groups_per_token = 3,
                      .group_score = GetParam().group_score});
}

TEST_P(RouteTest, LogitsOfNanStillGiveDifferentExperts) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> some = {nan, infinity, -infinity, 1.0f};
  Random random(83);
  for (const int64_t tokens : {1, 70}) {
    std::vector<float> logits;
    for (int64_t i = 0; i < tokens * 12; ++i)
      logits.push_back(i < 12 ? nan : some[static_cast<size_t>(random.between(0, 3))]);
    const Routes routes = routes_of({.logits = logits.data(),
                                     .num_tokens = tokens,
                                     .num_experts = 12,
                                     .experts_per_token = 5,
                                     .score = GetParam().score,
                                     .num_groups = 4,
                                     .groups_per_token = 2,
                                     .group_score = GetParam().group_score},
                                    true);
    EXPECT_EQ(routes.offsets.back(), tokens * 5);
    std::vector<int32_t> rows = routes.rows;
    std::sort(rows.begin(), rows.end());
    for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(rows[i], static_cast<int32_t>(i));
    for (size_t e = 0; e < 12; ++e) {
      for (int32_t row = routes.offsets[e] + 1; row < routes.offsets[e + 1]; ++row)
        EXPECT_LT(routes.tokens[static_cast<size_t>(row) - 1], routes.tokens[static_cast<size_t>(row)]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Routers, RouteTest,
                         ::testing::Values(Router{RouterScore::kSoftmax, GroupScore::kBest},
                                           Router{RouterScore::kSoftmaxOfChosen, GroupScore::kSumOfBestTwo},
                                           Router{RouterScore::kSigmoid, GroupScore::kSumOfBestTwo},
                                           Router{RouterScore::kSigmoid, GroupScore::kBest}),
                         [](const auto& test) {
                           return "Score" + std::to_string(static_cast<int>(test.param.score)) + "Group" +
                                  std::to_string(static_cast<int>(test.param.group_score));
                         });

}  // namespace
}  // namespace quire::ops::cuda
