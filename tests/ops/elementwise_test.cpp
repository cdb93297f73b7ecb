#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/reference/reference_backend.h"
#include "tests/ops/ops_test_support.h"

namespace quire::ops {
namespace {

using testing::kAllWeightFormats;
using testing::kDevices;
using testing::largest_difference;
using testing::Random;
using testing::same_bits;
using testing::StoredWeights;

const std::vector<int64_t> kSizes = {1, 2, 7, 8, 31, 32, 33, 63, 576, 1537};

class ElementwiseTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ElementwiseTest, RmsNormAgreesWithTheReferenceAndKeepsTheSum) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  auto reference = make_reference_backend();
  Random random(21);
  for (const int64_t size : kSizes) {
    for (const int64_t tokens : {1, 3, 40}) {
      for (const bool with_delta : {false, true}) {
        SCOPED_TRACE(::testing::Message() << size << " x " << tokens << ", delta " << with_delta);
        const std::vector<float> hidden = random.normals(tokens * size);
        const std::vector<float> delta = random.normals(tokens * size);
        const std::vector<float> weight = random.normals(size);
        std::vector<std::vector<float>> sums;
        std::vector<std::vector<float>> outs;
        for (Backend* each : {backend.get(), reference.get()}) {
          sums.push_back(hidden);
          outs.emplace_back(hidden.size());
          (*each)(RmsNormArgs{.hidden = sums.back().data(),
                              .delta = with_delta ? delta.data() : nullptr,
                              .weight = weight.data(),
                              .eps = 1e-5f,
                              .num_tokens = tokens,
                              .size = size,
                              .out = outs.back().data()});
        }
        EXPECT_EQ(sums[0], sums[1]);
        if (!with_delta) {
          EXPECT_EQ(sums[0], hidden);
        }
        EXPECT_LT(largest_difference(outs[0], outs[1]), 2e-6);
      }
    }
  }
}

TEST_P(ElementwiseTest, RmsNormScalesWhatItAdds) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  auto reference = make_reference_backend();
  Random random(31);
  const std::vector<float> hidden = random.normals(3 * 65);
  const std::vector<float> delta = random.normals(3 * 65);
  const std::vector<float> weight = random.normals(65);
  std::vector<std::vector<float>> sums;
  std::vector<std::vector<float>> outs;
  for (Backend* each : {backend.get(), reference.get()}) {
    sums.push_back(hidden);
    outs.emplace_back(hidden.size());
    (*each)(RmsNormArgs{.hidden = sums.back().data(),
                        .delta = delta.data(),
                        .delta_scale = 0.22f,
                        .weight = weight.data(),
                        .num_tokens = 3,
                        .size = 65,
                        .out = outs.back().data()});
  }
  EXPECT_NEAR(sums[0][64], hidden[64] + 0.22f * delta[64], 1e-6);
  EXPECT_LT(largest_difference(sums[0], sums[1]), 1e-6);
  EXPECT_LT(largest_difference(outs[0], outs[1]), 2e-6);
}

// Queries and keys: heads beside each other, tokens further apart than their heads take.
TEST_P(ElementwiseTest, RmsNormOfGroupsLeavesWhatIsBetweenTokens) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  auto reference = make_reference_backend();
  Random random(32);
  for (const int64_t size : {16, 24, 65}) {
    for (const int64_t groups : {1, 3}) {
      const int64_t stride = groups * size + 5;
      const std::vector<float> before = random.normals(7 * stride);
      const std::vector<float> weight = random.normals(size);
      std::vector<std::vector<float>> outs;
      for (Backend* each : {backend.get(), reference.get()}) {
        outs.push_back(before);
        (*each)(RmsNormArgs{.hidden = outs.back().data(),
                            .weight = weight.data(),
                            .num_tokens = 7,
                            .num_groups = groups,
                            .size = size,
                            .token_stride = stride,
                            .out = outs.back().data()});
      }
      EXPECT_LT(largest_difference(outs[0], outs[1]), 2e-6) << size << " x " << groups;
      for (int64_t t = 0; t < 7; ++t) {
        for (int64_t i = t * stride + groups * size; i < (t + 1) * stride; ++i) {
          EXPECT_EQ(outs[0][static_cast<size_t>(i)], before[static_cast<size_t>(i)]);
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, LayerNormAgreesWithTheReferenceWithAndWithoutParameters) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  auto reference = make_reference_backend();
  Random random(33);
  for (const int64_t size : kSizes) {
    for (const bool whole : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "size " << size << ", delta and parameters " << whole);
      std::vector<float> hidden = random.normals(5 * size);
      for (float& value : hidden) value += 3.0f;  // a mean worth taking away
      const std::vector<float> delta = random.normals(5 * size);
      const std::vector<float> weight = random.normals(size);
      const std::vector<float> bias = random.normals(size);
      std::vector<std::vector<float>> sums;
      std::vector<std::vector<float>> outs;
      for (Backend* each : {backend.get(), reference.get()}) {
        sums.push_back(hidden);
        outs.emplace_back(hidden.size());
        (*each)(LayerNormArgs{.hidden = sums.back().data(),
                              .delta = whole ? delta.data() : nullptr,
                              .weight = whole ? weight.data() : nullptr,
                              .bias = whole ? bias.data() : nullptr,
                              .eps = 1e-3f,
                              .num_tokens = 5,
                              .size = size,
                              .out = outs.back().data()});
      }
      EXPECT_EQ(sums[0], sums[1]);
      EXPECT_LT(largest_difference(outs[0], outs[1]), 2e-5);
    }
  }
}

TEST_P(ElementwiseTest, LayerNormGivesATokenTheSameBitsAloneAndAmongOthers) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  Random random(34);
  const int64_t size = 577;
  std::vector<float> hidden = random.normals(60 * size);
  std::vector<float> all(hidden.size());
  (*backend)(LayerNormArgs{.hidden = hidden.data(), .num_tokens = 60, .size = size, .out = all.data()});
  std::vector<float> alone(static_cast<size_t>(size));
  for (int64_t t = 0; t < 60; ++t) {
    (*backend)(LayerNormArgs{.hidden = hidden.data() + t * size, .num_tokens = 1, .size = size, .out = alone.data()});
    ASSERT_TRUE(same_bits(alone.data(), all.data() + t * size, size)) << "token " << t;
  }
}

TEST_P(ElementwiseTest, AddAndScaleAgreeWithTheReference) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  auto reference = make_reference_backend();
  Random random(35);
  for (const int64_t size : kSizes) {
    for (const float soft_cap : {0.0f, 0.7f, 30.0f}) {
      const std::vector<float> before = random.normals(3 * size, 20.0f);
      const std::vector<float> delta = random.normals(3 * size);
      std::vector<std::vector<float>> outs;
      for (Backend* each : {backend.get(), reference.get()}) {
        outs.push_back(before);
        (*each)(AddArgs{
            .hidden = outs.back().data(), .delta = delta.data(), .delta_scale = 0.5f, .num_tokens = 3, .size = size});
        (*each)(
            ScaleArgs{.values = outs.back().data(), .scale = 0.25f, .soft_cap = soft_cap, .num_rows = 3, .size = size});
      }
      EXPECT_LT(largest_difference(outs[0], outs[1]), 1e-6) << "size " << size << ", cap " << soft_cap;
    }
  }
}

TEST_P(ElementwiseTest, XieluAgreesWithTheReferenceOnBothSidesOfZero) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  auto reference = make_reference_backend();
  Random random(37);
  for (const int64_t size : kSizes) {
    const std::vector<float> before = random.normals(3 * size, 4.0f);
    std::vector<std::vector<float>> outs;
    for (Backend* each : {backend.get(), reference.get()}) {
      outs.push_back(before);
      (*each)(
          XieluArgs{.values = outs.back().data(), .num_tokens = 3, .size = size, .positive = 0.75f, .negative = 1.25f});
    }
    EXPECT_LT(largest_difference(outs[0], outs[1]), 2e-6) << "size " << size;
  }
  // By hand, and where e^x leaves nothing.
  std::vector<float> values = {2.0f, -1.0f, -200.0f, 0.0f};
  (*backend)(XieluArgs{.values = values.data(), .num_tokens = 1, .size = 4, .positive = 0.5f, .negative = 2.0f});
  EXPECT_NEAR(values[0], 3.0, 1e-6);
  EXPECT_NEAR(values[1], 2 * (std::exp(-1.0) - 1 + 1) - 0.5, 1e-6);
  EXPECT_NEAR(values[2], 2 * (-1.0 + 200) - 100, 1e-4);
  EXPECT_NEAR(values[3], 0, 1e-5);
}

TEST_P(ElementwiseTest, ScaledValuesAreCutOffAtTheLimitAndNowhereElse) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  Random random(36);
  for (const int64_t size : kSizes) {
    const std::vector<float> before = random.normals(3 * size, 20.0f);
    std::vector<float> values = before;
    (*backend)(ScaleArgs{.values = values.data(), .scale = 0.5f, .limit = 4.0f, .num_rows = 3, .size = size});
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], std::clamp(before[i] * 0.5f, -4.0f, 4.0f)) << "size " << size << ", number " << i;
    }
  }
}

// Far below the cap a value stays what it is, to its last digits.
TEST_P(ElementwiseTest, SoftCapIsWithinAFewUlpNearZeroAndNeverPassed) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  constexpr int64_t kCount = 100003;
  std::vector<float> values(kCount);
  for (int64_t i = 0; i < kCount; ++i)
    values[static_cast<size_t>(i)] = -400.0f + 800.0f * static_cast<float>(i) / kCount;
  const std::vector<float> before = values;
  (*backend)(ScaleArgs{.values = values.data(), .soft_cap = 50.0f, .num_rows = 1, .size = kCount});
  for (size_t i = 0; i < values.size(); ++i) {
    const double exact = 50.0 * std::tanh(static_cast<double>(before[i]) / 50.0);
    ASSERT_NEAR(values[i], exact, 6e-7 * std::fabs(exact)) << "value " << before[i];
    ASSERT_LE(std::fabs(values[i]), 50.0f);
  }
}

TEST_P(ElementwiseTest, RmsNormMayWriteOverItsInput) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  Random random(22);
  std::vector<float> hidden = random.normals(5 * 65);
  const std::vector<float> weight = random.normals(65);
  std::vector<float> out(hidden.size());
  RmsNormArgs args{.hidden = hidden.data(), .weight = weight.data(), .num_tokens = 5, .size = 65, .out = out.data()};
  (*backend)(args);
  args.out = hidden.data();
  (*backend)(args);
  EXPECT_EQ(hidden, out);
}

TEST_P(ElementwiseTest, RmsNormGivesATokenTheSameBitsAloneAndAmongOthers) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  Random random(23);
  const int64_t size = 577;
  std::vector<float> hidden = random.normals(100 * size);
  const std::vector<float> weight = random.normals(size);
  std::vector<float> all(hidden.size());
  (*backend)(RmsNormArgs{
      .hidden = hidden.data(), .weight = weight.data(), .num_tokens = 100, .size = size, .out = all.data()});
  std::vector<float> alone(static_cast<size_t>(size));
  for (int64_t t = 0; t < 100; ++t) {
    (*backend)(RmsNormArgs{.hidden = hidden.data() + t * size,
                           .weight = weight.data(),
                           .num_tokens = 1,
                           .size = size,
                           .out = alone.data()});
    ASSERT_TRUE(same_bits(alone.data(), all.data() + t * size, size)) << "token " << t;
  }
}

TEST_P(ElementwiseTest, RopeAgreesWithTheReferenceInBothStyles) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  auto reference = make_reference_backend();
  Random random(24);
  struct Dims {
    int32_t head_dim;
    int32_t rotary_dim;
  };
  for (const Dims& dims : std::vector<Dims>{{2, 2}, {16, 16}, {64, 64}, {80, 20}, {128, 96}, {6, 0}}) {
    for (const bool interleaved : {false, true}) {
      SCOPED_TRACE(::testing::Message() << dims.head_dim << ", rotary " << dims.rotary_dim << ", interleaved "
                                        << interleaved);
      constexpr int64_t kTokens = 37;
      constexpr int32_t kHeads = 3;
      constexpr int64_t kTablePositions = 50;
      const int64_t stride = kHeads * dims.head_dim + 4;  // the values of a merged projection lie between
      const std::vector<float> heads = random.normals(kTokens * stride);
      const std::vector<float> table = random.normals(std::max<int64_t>(1, kTablePositions * dims.rotary_dim));
      std::vector<int32_t> positions;
      for (int64_t t = 0; t < kTokens; ++t)
        positions.push_back(static_cast<int32_t>(random.between(0, kTablePositions - 1)));
      std::vector<std::vector<float>> outs;
      for (Backend* each : {backend.get(), reference.get()}) {
        outs.push_back(heads);
        (*each)(RopeArgs{.heads = outs.back().data(),
                         .token_stride = stride,
                         .num_tokens = kTokens,
                         .num_heads = kHeads,
                         .head_dim = dims.head_dim,
                         .rotary_dim = dims.rotary_dim,
                         .interleaved = interleaved,
                         .positions = positions.data(),
                         .table = table.data(),
                         .table_positions = kTablePositions});
      }
      EXPECT_LT(largest_difference(outs[0], outs[1]), 1e-6);
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t i = stride - 4; i < stride; ++i)
          EXPECT_EQ(outs[0][static_cast<size_t>(t * stride + i)], heads[static_cast<size_t>(t * stride + i)]);
      }
    }
  }
}

TEST_P(ElementwiseTest, SiluAndMulAgreesWithTheReference) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  auto reference = make_reference_backend();
  Random random(25);
  for (const int64_t size : kSizes) {
    const int64_t tokens = 33;
    const std::vector<float> in = random.normals(tokens * 2 * size, 5.0f);
    std::vector<float> out(static_cast<size_t>(tokens * size));
    std::vector<float> expected(out.size());
    (*backend)(ActivationArgs{.in = in.data(), .num_tokens = tokens, .size = size, .out = out.data()});
    (*reference)(ActivationArgs{.in = in.data(), .num_tokens = tokens, .size = size, .out = expected.data()});
    EXPECT_LT(largest_difference(out, expected), 1e-6) << "size " << size;
  }
}

TEST_P(ElementwiseTest, EveryActivationAgreesWithTheReferenceGatedAndPlain) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  auto reference = make_reference_backend();
  Random random(36);
  for (const Activation function : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kQuickGelu,
                                    Activation::kRelu, Activation::kRelu2}) {
    for (const bool gated : {false, true}) {
      for (const int64_t size : kSizes) {
        const int64_t tokens = 17;
        const std::vector<float> in = random.normals(tokens * size * (gated ? 2 : 1), 4.0f);
        std::vector<float> out(static_cast<size_t>(tokens * size));
        std::vector<float> expected(out.size());
        ActivationArgs args{.function = function, .gated = gated, .in = in.data(), .num_tokens = tokens, .size = size};
        args.out = out.data();
        (*backend)(args);
        args.out = expected.data();
        (*reference)(args);
        EXPECT_LT(largest_difference(out, expected), 1e-6)
            << "function " << static_cast<int>(function) << ", gated " << gated << ", size " << size;
      }
    }
  }
}

// The tail of the normal distribution has few digits left in 1 + erf(x): x Phi(x) keeps them.
TEST_P(ElementwiseTest, GeluKeepsItsDigitsFarBelowZero) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  std::vector<float> values;
  for (float x = -9.0f; x < 9.0f; x += 0.001f) values.push_back(x);
  std::vector<float> out(values.size());
  (*backend)(ActivationArgs{.function = Activation::kGelu,
                            .gated = false,
                            .in = values.data(),
                            .num_tokens = 1,
                            .size = static_cast<int64_t>(values.size()),
                            .out = out.data()});
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = values[i];
    const double exact = 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    ASSERT_NEAR(out[i], exact, 6e-6 * std::fabs(exact) + 1e-37) << "x " << x;
  }
}

// With an up of 1 the op is silu: x / (1 + e^-x), which shows the error of e^x itself.
TEST_P(ElementwiseTest, SiluIsWithinAFewUlpFromTheLargestToTheSmallestValues) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  constexpr int64_t kCount = 200003;
  std::vector<float> in(2 * kCount, 1.0f);
  for (int64_t i = 0; i < kCount; ++i) in[static_cast<size_t>(i)] = -100.0f + 200.0f * static_cast<float>(i) / kCount;
  std::vector<float> out(kCount);
  (*backend)(ActivationArgs{.in = in.data(), .num_tokens = 1, .size = kCount, .out = out.data()});
  for (size_t i = 0; i < kCount; ++i) {
    const double x = in[i];
    const double exact = x / (1.0 + std::exp(-x));
    // e^-x leaves the floats at x = -88.7: from there on 0 is as good.
    const double tolerance = x < -87.0 ? 1e-36 : 4e-7 * std::fabs(exact);
    ASSERT_NEAR(out[i], exact, tolerance) << "x " << x;
  }
}

TEST_P(ElementwiseTest, SiluKeepsNotANumberAndInfinity) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  // Nine values: the vector path and its tail.
  std::vector<float> in(18, 1.0f);
  for (const size_t at : {size_t{0}, size_t{8}}) in[at] = nan;
  in[1] = kInfinity;
  in[2] = -1000.0f;
  std::vector<float> out(9);
  (*backend)(ActivationArgs{.in = in.data(), .num_tokens = 1, .size = 9, .out = out.data()});
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_TRUE(std::isnan(out[8]));
  EXPECT_EQ(out[1], kInfinity);
  EXPECT_NEAR(out[2], 0.0f, 1e-30f);
}

TEST_P(ElementwiseTest, SiluAndMulDoesNotDependOnTheTokensBeside) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  Random random(26);
  const int64_t size = 1003;
  const std::vector<float> in = random.normals(40 * 2 * size, 3.0f);
  std::vector<float> all(static_cast<size_t>(40 * size));
  std::vector<float> alone(static_cast<size_t>(size));
  (*backend)(ActivationArgs{.in = in.data(), .num_tokens = 40, .size = size, .out = all.data()});
  for (int64_t t = 0; t < 40; ++t) {
    (*backend)(ActivationArgs{.in = in.data() + t * 2 * size, .num_tokens = 1, .size = size, .out = alone.data()});
    ASSERT_TRUE(same_bits(alone.data(), all.data() + t * size, size)) << "token " << t;
  }
}

TEST_P(ElementwiseTest, EmbeddingReadsRowsOfEveryFormatExactly) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  auto reference = make_reference_backend();
  Random random(27);
  for (const DType dtype : kAllWeightFormats) {
    for (const int64_t size : {32, 96, 256, 576, 768, 45}) {
      if (size % info(dtype).block_values != 0) continue;
      const StoredWeights table(dtype, 11, size, random);
      const std::vector<TokenId> ids = {10, 0, 3, 3, 7};
      std::vector<float> out(ids.size() * static_cast<size_t>(size));
      std::vector<float> expected(out.size());
      const auto count = static_cast<int64_t>(ids.size());
      const auto resident = backend->table(table.view());
      ASSERT_TRUE(resident.ok()) << resident.status().message();
      (*backend)(EmbeddingArgs{ids.data(), count, resident->view, out.data(), resident->row_stride});
      (*reference)(EmbeddingArgs{ids.data(), count, table.view(), expected.data()});
      EXPECT_TRUE(same_bits(out.data(), expected.data(), static_cast<int64_t>(out.size())))
          << name(dtype) << ", size " << size;
    }
  }
}

TEST_P(ElementwiseTest, EmbeddingOfAPartGivesZerosForOtherIds) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  auto reference = make_reference_backend();
  Random random(31);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kQ8_0}) {
    constexpr int64_t kSize = 96;
    const StoredWeights table(dtype, 5, kSize, random);
    const std::vector<TokenId> ids = {0, 6, 7, 11, 12, 90, 8};
    std::vector<float> out(ids.size() * kSize, -1.0f);
    std::vector<float> expected(out.size(), 1.0f);
    const auto resident = backend->table(table.view());
    ASSERT_TRUE(resident.ok()) << resident.status().message();
    EmbeddingArgs args{.ids = ids.data(), .num_tokens = std::ssize(ids), .table = resident->view, .out = out.data()};
    args.row_stride = resident->row_stride;
    args.is_part = true;
    args.first_id = 7;
    (*backend)(args);
    args.table = table.view();
    args.row_stride = 0;
    args.out = expected.data();
    (*reference)(args);
    EXPECT_TRUE(same_bits(out.data(), expected.data(), static_cast<int64_t>(out.size()))) << name(dtype);
  }
}

TEST_P(ElementwiseTest, EmbeddingReadsEveryHalf) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  auto reference = make_reference_backend();
  std::vector<uint16_t> halves(1 << 16);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  const std::vector<TokenId> ids = {0};
  std::vector<float> out(halves.size());
  std::vector<float> expected(halves.size());
  EmbeddingArgs args{ids.data(), 1, {halves.data(), DType::kF16, Shape{1, 1 << 16}}, out.data()};
  (*backend)(args);
  args.out = expected.data();
  (*reference)(args);
  for (size_t i = 0; i < out.size(); ++i) {
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(out[i])) << i;
    } else {
      ASSERT_TRUE(same_bits(&out[i], &expected[i], 1)) << i;
    }
  }
}

TEST_P(ElementwiseTest, GatherRowsCopies) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  Random random(28);
  const std::vector<float> in = random.normals(9 * 13);
  const std::vector<int32_t> rows = {8, 0, 0, 5};
  std::vector<float> out(rows.size() * 13);
  (*backend)(GatherRowsArgs{in.data(), 13, rows.data(), 4, out.data()});
  for (size_t i = 0; i < rows.size(); ++i)
    EXPECT_TRUE(same_bits(&out[i * 13], &in[static_cast<size_t>(rows[i]) * 13], 13));
}

TEST_P(ElementwiseTest, KvWriteFillsTheSlotsAndNothingElse) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  auto reference = make_reference_backend();
  Random random(29);
  for (const int32_t block_size : {1, 5, 16}) {
    constexpr int32_t kHeads = 3;
    constexpr int32_t kHeadDim = 18;
    constexpr int64_t kBlocks = 20;
    const std::vector<float> kv = random.normals(50 * 2 * kHeads * kHeadDim);
    std::vector<int64_t> slots;
    for (int64_t slot = kBlocks * block_size - 1; slot >= 0 && slots.size() < 50; slot -= 3) slots.push_back(slot);
    std::vector<std::vector<float>> caches;
    for (Backend* each : {backend.get(), reference.get()}) {
      const auto floats = static_cast<size_t>(kBlocks * block_size * kHeads * kHeadDim);
      std::vector<float> keys(floats, -1.0f);
      std::vector<float> values(floats, -2.0f);
      KvWriteArgs args;
      args.keys = kv.data();
      args.values = kv.data() + kHeads * kHeadDim;
      args.token_stride = 2 * kHeads * kHeadDim;
      args.num_tokens = static_cast<int64_t>(slots.size());
      args.slots = slots.data();
      args.cache = {keys.data(), values.data(), DType::kF32, kBlocks, kHeads, kHeadDim, block_size};
      args.cache.keys_by_token = backend->keys_by_token();
      (*each)(args);
      caches.push_back(keys);
      caches.push_back(values);
    }
    EXPECT_EQ(caches[0], caches[2]) << "block_size " << block_size;
    EXPECT_EQ(caches[1], caches[3]) << "block_size " << block_size;
  }
}

TEST_P(ElementwiseTest, TheLargestIsTheFirstOfThemOrNoneWhereARowIsSpoilt) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  auto reference = make_reference_backend();
  Random random(43);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const int64_t size : kSizes) {
    constexpr int64_t kRows = 9;
    std::vector<float> in = random.normals(kRows * size);
    const auto row = [&](int64_t t) { return in.begin() + t * size; };
    *std::next(row(1), size / 2) = nan;
    *std::next(row(2), size - 1) = infinity;
    std::fill_n(row(3), size, -infinity);
    std::fill_n(row(4), size, 1.5f);
    std::fill_n(row(5), size, -infinity);
    *std::next(row(5), size - 1) = -std::numeric_limits<float>::max();
    *row(6) = *std::next(row(6), size - 1) = 9.0f;
    std::fill_n(row(7), size, -0.0f);
    *std::next(row(7), size / 2) = 0.0f;
    std::vector<std::vector<int32_t>> indices(2, std::vector<int32_t>(kRows, 77));
    const std::vector<TokenChoice> choices(kRows);
    for (size_t i = 0; i < 2; ++i) {
      (*(i == 0 ? backend : reference))(ChooseTokensArgs{
          .in = in.data(), .num_rows = kRows, .size = size, .choices = choices.data(), .tokens = indices[i].data()});
    }
    EXPECT_EQ(indices[0], indices[1]) << size;
    EXPECT_EQ(indices[0][1], -1);
    EXPECT_EQ(indices[0][2], -1);
    EXPECT_EQ(indices[0][3], -1);
    EXPECT_EQ(indices[0][4], 0);
    EXPECT_EQ(indices[0][5], size - 1);
    EXPECT_EQ(indices[0][6], 0);
    EXPECT_EQ(indices[0][7], 0);
  }
}

TEST_P(ElementwiseTest, EmptyBatchesDoNothing) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  auto reference = make_reference_backend();
  const std::vector<float> weights(64, 1.0f);
  for (Backend* each : {backend.get(), reference.get()}) {
    const TensorView view{weights.data(), DType::kF32, Shape{2, 32}};
    const auto weight = each->pack(std::span(&view, 1)).value();
    (*each)(EmbeddingArgs{.table = view});
    (*each)(RmsNormArgs{.size = 4});
    (*each)(LinearArgs{.weight = weight.get()});
    (*each)(RopeArgs{.num_heads = 1, .head_dim = 2, .rotary_dim = 2});
    const KvCacheView cache{.num_kv_heads = 1, .head_dim = 2, .block_size = 16, .keys_by_token = each->keys_by_token()};
    (*each)(KvWriteArgs{.cache = cache});
    (*each)(PagedAttentionArgs{.num_heads = 1, .cache = cache});
    (*each)(ActivationArgs{.size = 4});
    (*each)(LayerNormArgs{.size = 4});
    (*each)(AddArgs{.size = 4});
    (*each)(ScaleArgs{.size = 4});
    (*each)(GatherRowsArgs{.size = 4});
    (*each)(PrepareHeadsArgs{.num_heads = 1, .cache = cache});
    (*each)(EditLogitsArgs{.size = 4});
    (*each)(TopLogprobsArgs{.size = 4});
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, ElementwiseTest, ::testing::ValuesIn(kDevices),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::ops
