#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/reference/reference_backend.h"
#include "tests/ops/ops_test_support.h"

namespace quire::ops {
namespace {

using ::testing::ElementsAre;
using testing::kAllWeightFormats;
using testing::kDevices;
using testing::largest_difference;
using testing::Random;
using testing::same_bits;
using testing::StoredWeights;

// What a router gives, with memory of its own.
struct Routes {
  std::vector<float> weights;
  std::vector<int32_t> rows;
  std::vector<int32_t> tokens;
  std::vector<int32_t> offsets;

  int32_t expert_of(int64_t pair) const {
    const auto after = std::upper_bound(offsets.begin(), offsets.end(), rows[static_cast<size_t>(pair)]);
    return static_cast<int32_t>(after - offsets.begin()) - 1;
  }
  std::vector<int32_t> experts() const {
    std::vector<int32_t> all;
    for (size_t pair = 0; pair < rows.size(); ++pair) all.push_back(expert_of(static_cast<int64_t>(pair)));
    return all;
  }
};

Routes route(Backend& backend, MoeRoutingArgs args) {
  const auto pairs = static_cast<size_t>(args.num_tokens * args.experts_per_token);
  Routes routes{std::vector<float>(pairs), std::vector<int32_t>(pairs, -1), std::vector<int32_t>(pairs, -1),
                std::vector<int32_t>(static_cast<size_t>(args.num_experts) + 1, -1)};
  args.weights = routes.weights.data();
  args.rows = routes.rows.data();
  args.tokens = routes.tokens.data();
  args.offsets = routes.offsets.data();
  backend(args);
  return routes;
}

class MoeTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    backend_ = testing::make_backend(GetParam());
    if (backend_ == nullptr) GTEST_SKIP() << "this machine lacks " << GetParam();
    reference_ = make_reference_backend();
  }
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Backend> reference_;
};

TEST_P(MoeTest, RoutesAsTheReferenceWhateverTheRouter) {
  Random random(81);
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSoftmaxOfChosen, RouterScore::kSigmoid}) {
    for (const GroupScore group_score : {GroupScore::kBest, GroupScore::kSumOfBestTwo}) {
      for (const int32_t groups : {1, 4}) {
        for (const bool with_bias : {false, true}) {
          const int64_t tokens = 77;
          const std::vector<float> logits = random.normals(tokens * 24, 2.0f);
          const std::vector<float> bias = random.normals(24, 0.3f);
          const std::vector<float> scales = random.normals(24, 1.0f);
          const MoeRoutingArgs args{.logits = logits.data(),
                                    .correction_bias = with_bias ? bias.data() : nullptr,
                                    .num_tokens = tokens,
                                    .num_experts = 24,
                                    .experts_per_token = 5,
                                    .score = score,
                                    .normalise = with_bias,
                                    .scale = 2.5f,
                                    .num_groups = groups,
                                    .groups_per_token = groups == 1 ? 1 : 2,
                                    .group_score = group_score};
          const Routes found = route(*backend_, args);
          const Routes expected = route(*reference_, args);
          EXPECT_EQ(found.rows, expected.rows);
          EXPECT_EQ(found.tokens, expected.tokens);
          EXPECT_EQ(found.offsets, expected.offsets);
          EXPECT_LT(largest_difference(found.weights, expected.weights), 2e-6);
          // Of the experts that other ranks have the weights alone are others.
          MoeRoutingArgs some = args;
          some.first_expert = 7;
          some.end_expert = 19;
          Routes here = route(*backend_, some);
          const std::vector<int32_t> experts = found.experts();
          for (size_t i = 0; i < experts.size(); ++i) {
            const bool is_here = experts[i] >= 7 && experts[i] < 19;
            ASSERT_EQ(here.weights[i], is_here ? found.weights[i] : 0.0f);
          }
          EXPECT_EQ(here.rows, found.rows);
          EXPECT_EQ(here.offsets, found.offsets);
          // Scales of the experts' own are the last that comes to a weight.
          MoeRoutingArgs scaled = args;
          scaled.expert_scales = scales.data();
          const Routes other = route(*backend_, scaled);
          for (size_t i = 0; i < experts.size(); ++i) {
            ASSERT_EQ(other.weights[i], found.weights[i] * scales[static_cast<size_t>(experts[i])]);
          }
          EXPECT_EQ(other.rows, found.rows);
        }
      }
    }
  }
}

TEST_P(MoeTest, ChoosesByHandMadeLogits) {
  const std::vector<float> logits = {1, 3, 2, 3, 0, -1};
  MoeRoutingArgs args{.logits = logits.data(), .num_tokens = 1, .num_experts = 6, .experts_per_token = 3};
  args.score = RouterScore::kSoftmaxOfChosen;
  const Routes routes = route(*backend_, args);
  EXPECT_THAT(routes.experts(), ElementsAre(1, 3, 2)) << "the lower index of equal ones first";
  EXPECT_NEAR(routes.weights[0], 1.0 / (2.0 + std::exp(-1.0)), 1e-6);
  EXPECT_NEAR(routes.weights[2], std::exp(-1.0) / (2.0 + std::exp(-1.0)), 1e-6);

  // The bias decides, the weight is that of the score alone.
  const std::vector<float> bias = {0, 0, 0, 0, 0, 5};
  args.score = RouterScore::kSigmoid;
  args.correction_bias = bias.data();
  args.experts_per_token = 1;
  const Routes biased = route(*backend_, args);
  EXPECT_THAT(biased.experts(), ElementsAre(5));
  const double score = 1.0 / (1.0 + std::exp(1.0));
  EXPECT_NEAR(biased.weights[0], score, 1e-6);

  // An offset of the sum matters where it is as large as the scores.
  args.normalise = true;
  args.sum_offset = 0.5f;
  EXPECT_NEAR(route(*backend_, args).weights[0], score / (score + 0.5), 1e-6);
  args.normalise = false;

  // Of three groups of two the one with the best two together, though the best of all is elsewhere.
  const std::vector<float> grouped = {4, -4, 1, 1, 3, -9};
  args.logits = grouped.data();
  args.score = RouterScore::kSoftmaxOfChosen;
  args.correction_bias = nullptr;
  args.num_groups = 3;
  args.group_score = GroupScore::kSumOfBestTwo;
  args.experts_per_token = 2;
  EXPECT_THAT(route(*backend_, args).experts(), ElementsAre(2, 3));
  args.group_score = GroupScore::kBest;
  EXPECT_THAT(route(*backend_, args).experts(), ElementsAre(0, 1));
}

TEST_P(MoeTest, LogitsOfNanStillGiveDifferentExperts) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {nan, nan, nan, nan, nan, -infinity, 2, nan, infinity, nan, 1, -infinity};
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSoftmaxOfChosen, RouterScore::kSigmoid}) {
    const Routes routes =
        route(*backend_,
              {.logits = logits.data(), .num_tokens = 3, .num_experts = 4, .experts_per_token = 3, .score = score});
    for (int64_t token = 0; token < 3; ++token) {
      std::vector<int32_t> experts;
      for (int64_t r = 0; r < 3; ++r) experts.push_back(routes.expert_of(token * 3 + r));
      std::sort(experts.begin(), experts.end());
      EXPECT_EQ(std::adjacent_find(experts.begin(), experts.end()), experts.end());
      EXPECT_GE(experts.front(), 0);
      EXPECT_LT(experts.back(), 4);
    }
  }
}

// Experts with memory of their own, and what is asked of them.
struct Experts {
  Experts(Backend& backend, DType dtype, const std::vector<StoredWeights>& stored) {
    for (const StoredWeights& each : stored) {
      const TensorView view = each.view();
      owned.push_back(std::move(backend.pack({&view, 1})).value());
      pointers.push_back(owned.back().get());
      EXPECT_EQ(owned.back()->dtype(), dtype);
    }
    group = backend.group(pointers);
  }
  std::vector<std::unique_ptr<PackedMatrix>> owned;
  std::vector<const PackedMatrix*> pointers;
  std::unique_ptr<PackedGroup> group;
};

// The size of a's distance from b, by b's.
double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double{a[i]} - b[i], 2);
    size += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(difference / size);
}

TEST_P(MoeTest, AGroupedProductIsTheProductOfEachExpertToTheBit) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  std::vector<DType> formats = kAllWeightFormats;
  formats.insert(formats.end(), {DType::kF8E4M3_128, DType::kF8E4M3_32});
  for (const DType dtype : formats) {
    const int64_t k = 256;
    const int64_t n = random.between(1, 100);
    std::vector<StoredWeights> stored;
    for (int i = 0; i < 5; ++i) stored.emplace_back(dtype, n, k, random);
    const Experts experts(*backend_, dtype, stored);
    // An expert without rows, one with a single row, one with more than go through its panels together; and before and
    // behind them rows that are nobody's.
    const int32_t before = random.between(0, 3);
    std::vector<int32_t> offsets = {0, 1, 1, 4, 4 + static_cast<int32_t>(random.between(190, 230)), 300};
    for (int32_t& offset : offsets) offset += before;
    const int64_t num_rows = offsets.back() + random.between(0, 3);
    const std::vector<float> x = random.normals(num_rows * k);
    const std::vector<float> bias = random.normals(5 * n);
    std::vector<float> out(static_cast<size_t>(num_rows * n), 7.0f);
    std::vector<float> expected = out;
    (*backend_)(GroupedLinearArgs{.x = x.data(),
                                  .x_stride = k,
                                  .offsets = offsets.data(),
                                  .num_rows = num_rows,
                                  .weights = experts.group.get(),
                                  .bias = bias.data(),
                                  .bias_stride = n,
                                  .out = out.data(),
                                  .out_stride = n});
    for (size_t e = 0; e < 5; ++e) {
      const int64_t first = offsets[e];
      (*backend_)(LinearArgs{.x = x.data() + first * k,
                             .x_stride = k,
                             .num_rows = offsets[e + 1] - first,
                             .weight = experts.pointers[e],
                             .bias = bias.data() + static_cast<int64_t>(e) * n,
                             .out = expected.data() + first * n,
                             .out_stride = n});
    }
    if (testing::is_card(GetParam()) && dtype == DType::kF8E4M3_128) {  // x of many rows is rounded to 8 bits
      EXPECT_LT(relative_difference(out, expected), 5e-2) << name(dtype);
    } else if (testing::is_card(GetParam())) {  // many rows of one weight are another kernel's
      EXPECT_LT(testing::largest_difference(out, expected), 1e-2) << name(dtype);
    } else {
      EXPECT_TRUE(same_bits(out.data(), expected.data(), static_cast<int64_t>(out.size()))) << name(dtype);
    }
  }
}

// On a card these are a kernel's of their own, which takes 8, 16 or 32 rows of a group together and some columns at a
// time.
TEST_P(MoeTest, GroupsOfSomeRowsAreTheProductsOfTheirExperts) {
  Random random(86);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int64_t k : {8, 128, 264, 4104}) {
      const int64_t n = k == 264 ? 301 : 9;
      std::vector<StoredWeights> stored;
      for (int i = 0; i < 8; ++i) stored.emplace_back(dtype, n, k, random);
      const Experts experts(*backend_, dtype, stored);
      const std::vector<int32_t> offsets = {0, 0, 1, 8, 16, 25, 41, 58, 91};
      const std::vector<float> x = random.normals(offsets.back() * k);
      const std::vector<float> bias = random.normals(8 * n);
      std::vector<float> out(static_cast<size_t>(offsets.back() * n), 77.0f);
      (*backend_)(GroupedLinearArgs{.x = x.data(),
                                    .x_stride = k,
                                    .offsets = offsets.data(),
                                    .num_rows = offsets.back(),
                                    .weights = experts.group.get(),
                                    .bias = bias.data(),
                                    .bias_stride = n,
                                    .out = out.data(),
                                    .out_stride = n});
      for (size_t e = 0; e < 8; ++e) {
        std::vector<float> expected(static_cast<size_t>((offsets[e + 1] - offsets[e]) * n));
        (*backend_)(LinearArgs{.x = x.data() + offsets[e] * k,
                               .x_stride = k,
                               .num_rows = offsets[e + 1] - offsets[e],
                               .weight = experts.pointers[e],
                               .bias = bias.data() + static_cast<int64_t>(e) * n,
                               .out = expected.data(),
                               .out_stride = n});
        const std::vector<float> got(out.begin() + offsets[e] * n, out.begin() + offsets[e + 1] * n);
        EXPECT_LT(largest_difference(got, expected), testing::is_card(GetParam()) ? 1e-2 : 1e-6)
            << name(dtype) << ", " << k << " columns, expert " << e;
      }
    }
  }
}

TEST_P(MoeTest, AGroupedProductReadsAndWritesHeadsBesideEachOther) {
  Random random(85);
  // So many tokens that a card has each of its kernels.
  for (const auto& [dtype, tokens] : std::vector<std::pair<DType, int64_t>>{{DType::kF32, 17},
                                                                            {DType::kQ8_0, 17},
                                                                            {DType::kQ8_0, 70},
                                                                            {DType::kBF16, 2},
                                                                            {DType::kBF16, 17},
                                                                            {DType::kBF16, 70},
                                                                            {DType::kF16, 140}}) {
    const int64_t heads = 3;
    const int64_t k = 96;
    const int64_t n = 20;
    std::vector<StoredWeights> stored;
    for (int64_t i = 0; i < heads; ++i) stored.emplace_back(dtype, n, k, random);
    const Experts weights(*backend_, dtype, stored);
    const std::vector<float> x = random.normals(tokens * heads * k);
    std::vector<float> out(static_cast<size_t>(tokens * heads * n));
    std::vector<float> expected = out;
    (*backend_)(GroupedLinearArgs{.x = x.data(),
                                  .x_stride = heads * k,
                                  .num_rows = tokens * heads,
                                  .weights = weights.group.get(),
                                  .out = out.data(),
                                  .out_stride = heads * n,
                                  .x_group_stride = k,
                                  .out_group_stride = n});
    for (int64_t head = 0; head < heads; ++head) {
      (*backend_)(LinearArgs{.x = x.data() + head * k,
                             .x_stride = heads * k,
                             .num_rows = tokens,
                             .weight = weights.pointers[static_cast<size_t>(head)],
                             .out = expected.data() + head * n,
                             .out_stride = heads * n});
    }
    if (testing::is_card(GetParam())) {  // many rows of one weight are another kernel's
      EXPECT_LT(testing::largest_difference(out, expected), 1e-2) << name(dtype) << ", " << tokens << " tokens";
    } else {
      EXPECT_TRUE(same_bits(out.data(), expected.data(), static_cast<int64_t>(out.size())))
          << name(dtype) << ", " << tokens << " tokens";
    }
  }
}

TEST_P(MoeTest, TheClampedGateAgreesWithTheReferenceBeyondItsLimitsToo) {
  Random random(83);
  for (const int64_t size : {1, 7, 8, 33, 130}) {
    const std::vector<float> in = random.normals(3 * 2 * size, 6.0f);
    std::vector<std::vector<float>> outs;
    for (Backend* each : {backend_.get(), reference_.get()}) {
      outs.emplace_back(static_cast<size_t>(3 * size));
      (*each)(ClampedSwigluArgs{
          .in = in.data(), .num_tokens = 3, .size = size, .alpha = 1.5f, .limit = 5.0f, .out = outs.back().data()});
    }
    EXPECT_LT(largest_difference(outs[0], outs[1]), 2e-6);
  }
}

TEST_P(MoeTest, CombinesExpertsInTheirOrderAndTheSharedOneAsItsGateSays) {
  Random random(84);
  for (const int64_t size : {1, 8, 61, 256}) {
    for (const bool shared : {false, true}) {
      for (const bool gated : {false, true}) {
        if (gated && !shared) continue;
        const int64_t tokens = 9;
        const std::vector<float> experts = random.normals(tokens * 3 * size);
        const std::vector<float> weights = random.normals(tokens * 3);
        const std::vector<float> gate = random.normals(tokens, 3.0f);
        const std::vector<float> always = random.normals(tokens * size);
        std::vector<int32_t> rows(static_cast<size_t>(tokens * 3));
        for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>((i * 5) % rows.size());
        std::vector<std::vector<float>> outs;
        for (Backend* each : {backend_.get(), reference_.get()}) {
          outs.push_back(always);  // in place of the shared expert's output
          (*each)(MoeCombineArgs{.experts = experts.data(),
                                 .rows = rows.data(),
                                 .weights = weights.data(),
                                 .experts_per_token = 3,
                                 .shared = shared ? outs.back().data() : nullptr,
                                 .shared_gate = gated ? gate.data() : nullptr,
                                 .num_tokens = tokens,
                                 .size = size,
                                 .out = outs.back().data()});
        }
        EXPECT_LT(largest_difference(outs[0], outs[1]), 2e-6);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, MoeTest, ::testing::ValuesIn(kDevices), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::ops
