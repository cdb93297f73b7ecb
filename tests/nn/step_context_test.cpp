// What a layer is given for a step, where it is more than a batch: adapters of some rows.
#include "nn/step_context.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "nn/mlp.h"
#include "nn/moe.h"
#include "ops/cpu/cpu_backend.h"
#include "tests/nn/memory_checkpoint.h"

namespace quire::nn {
namespace {

constexpr int64_t kWidth = 32;
constexpr int64_t kInnerWidth = 16;
constexpr int32_t kTokens = 4;

void add_matrix(MemoryCheckpoint& checkpoint, const std::string& name, int64_t rows, int64_t columns) {
  std::mt19937 random(static_cast<uint32_t>(rows * 1000 + columns));
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (float& value : values) value = normal(random);
  const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
  checkpoint.add(name, DType::kF32, {rows, columns}, {bytes, bytes + values.size() * sizeof(float)});
}

// Adds the same number to all that the rows of some tokens give, and notes what it is asked.
class FakeAdapters final : public RowAdapters {
 public:
  explicit FakeAdapters(std::vector<int32_t> tokens, float number) : tokens_(std::move(tokens)), number_(number) {}

  bool adapt(const StepContext& /*step*/, const AdaptableLayer& layer) const override {
    return only_ == nullptr || &layer == only_;
  }
  void add_embedded(const StepContext& /*step*/, const AdaptableLayer& /*layer*/, Mirrored<TokenId> /*ids*/,
                    const ops::View& /*out*/) const override {}
  void add_heads(const StepContext& /*step*/, const AdaptableLayer& /*layer*/, int32_t /*first*/, int32_t /*num_heads*/,
                 const HeadRows& /*rows*/) const override {}
  void give_keys(const StepContext& /*step*/, const CacheLayer& /*layer*/) const override {}
  void add_experts(const StepContext& step, const AdaptableLayer& layer, const ops::ConstView& x,
                   const int32_t* /*offsets*/, const ops::View& out) const override {
    add(step, layer, x, out);
  }
  void add(const StepContext& step, const AdaptableLayer& /*layer*/, const ops::ConstView& /*x*/,
           const ops::View& out) const override {
    for (int64_t row = 0; row < out.num_rows; ++row) {
      const auto token =
          step.rows.kind == RowTokens::Kind::kGathered ? step.rows.tokens.host[row] : static_cast<int32_t>(row);
      seen_.push_back(token);
      if (std::ranges::find(tokens_, token) == tokens_.end()) continue;
      for (int64_t i = 0; i < out.num_columns; ++i) out.floats()[row * out.num_columns + i] += number_;
    }
  }
  void adapt_only(const AdaptableLayer* layer) { only_ = layer; }
  const std::vector<int32_t>& seen() const { return seen_; }

 private:
  std::vector<int32_t> tokens_;
  float number_;
  const AdaptableLayer* only_ = nullptr;
  mutable std::vector<int32_t> seen_;
};

class AdaptedLayers : public ::testing::Test {
 protected:
  AdaptedLayers() : backend_(std::move(ops::make_cpu_backend({.threads = 2})).value()) {
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50) / 50.0f;
  }
  StepContext step(const RowAdapters* adapters = nullptr) {
    return {.backend = *backend_, .batch = batch_, .workspace = workspace_, .adapters = adapters};
  }

  std::unique_ptr<ops::Backend> backend_;
  Batch batch_{.num_tokens = kTokens};
  std::vector<float> memory_ = std::vector<float>(1 << 14);
  Workspace workspace_{memory_.data(), 1 << 14};
  std::vector<float> x_ = std::vector<float>(kTokens * kWidth);
  ops::ConstView input_{x_.data(), kTokens, kWidth};
};

TEST_F(AdaptedLayers, AnAdapterAddsToGateAndUpBeforeTheActivation) {
  MemoryCheckpoint checkpoint;
  add_matrix(checkpoint, "gate_proj.weight", kInnerWidth, kWidth);
  add_matrix(checkpoint, "up_proj.weight", kInnerWidth, kWidth);
  Loader loader(Loader::Mode::kLoad, checkpoint, *backend_);
  const Linear gate_up(loader, {{"gate_proj", kInnerWidth}, {"up_proj", kInnerWidth}}, kWidth);
  std::vector<float> products(kTokens * 2 * kInnerWidth);
  const auto activated = [&](const StepContext& context) {
    std::vector<float> out(kTokens * kInnerWidth);
    gate_up.gated(context, input_, Activation::kSilu, ops::View(products.data(), kTokens, 2 * kInnerWidth),
                  ops::View(out.data(), kTokens, kInnerWidth));
    return out;
  };
  const std::vector<float> plain = activated(step());
  gate_up(step(), input_, ops::View(products.data(), kTokens, 2 * kInnerWidth));
  for (int64_t i = 0; i < 2 * kInnerWidth; ++i) products[2 * 2 * kInnerWidth + i] += 0.5f;  // of token 2
  std::vector<float> expected(kTokens * kInnerWidth);
  step()(ops::ActivationArgs{.function = Activation::kSilu,
                             .in = products.data(),
                             .num_tokens = kTokens,
                             .size = kInnerWidth,
                             .out = expected.data()});

  FakeAdapters adapters({2}, 0.5f);
  adapters.adapt_only(gate_up.layer());
  const std::vector<float> adapted = activated(step(&adapters));
  EXPECT_EQ(adapted, expected);
  for (int32_t token = 0; token < kTokens; ++token) {
    const auto row = [&](const std::vector<float>& all) {
      return std::vector(all.begin() + token * kInnerWidth, all.begin() + (token + 1) * kInnerWidth);
    };
    EXPECT_EQ(row(adapted) == row(plain), token != 2) << token;
  }
}

TEST_F(AdaptedLayers, WhereNoRowHasAnAdapterForALayerItsProductIsTheSame) {
  MemoryCheckpoint checkpoint;
  add_matrix(checkpoint, "mlp.gate_proj.weight", kInnerWidth, kWidth);
  add_matrix(checkpoint, "mlp.up_proj.weight", kInnerWidth, kWidth);
  add_matrix(checkpoint, "mlp.down_proj.weight", kWidth, kInnerWidth);
  Loader loader(Loader::Mode::kLoad, checkpoint, *backend_);
  const GatedMlp mlp(loader, "mlp", kWidth, kInnerWidth, false, Activation::kSilu);
  std::vector<float> plain(kTokens * kWidth);
  std::vector<float> other(kTokens * kWidth);
  mlp(step(), input_, ops::View(plain.data(), kTokens, kWidth));
  FakeAdapters adapters({0, 1, 2, 3}, 1.0f);
  const AdaptableLayer another;
  adapters.adapt_only(&another);
  mlp(step(&adapters), input_, ops::View(other.data(), kTokens, kWidth));
  EXPECT_EQ(other, plain);
  EXPECT_TRUE(adapters.seen().empty());
}

TEST_F(AdaptedLayers, AWorkspaceWithoutMemorySeesWhatAPlannedLayerTakesAndRunsNothing) {
  MemoryCheckpoint checkpoint;
  add_matrix(checkpoint, "mlp.gate_proj.weight", kInnerWidth, kWidth);
  add_matrix(checkpoint, "mlp.up_proj.weight", kInnerWidth, kWidth);
  add_matrix(checkpoint, "mlp.down_proj.weight", kWidth, kInnerWidth);
  for (const Loader::Mode mode : {Loader::Mode::kPlan, Loader::Mode::kLoad}) {
    Loader loader(mode, checkpoint, *backend_);
    const GatedMlp mlp(loader, "mlp", kWidth, kInnerWidth, false, Activation::kSilu);
    Workspace nothing;
    std::vector<float> out(kTokens * kWidth, 7.0f);
    mlp({.backend = *backend_, .batch = batch_, .workspace = nothing}, input_, ops::View(out.data(), kTokens, kWidth));
    EXPECT_EQ(nothing.most_used(), kTokens * 3 * kInnerWidth) << "gate and up, and what becomes of them";
    EXPECT_EQ(out, std::vector<float>(out.size(), 7.0f));
  }
}

TEST_F(AdaptedLayers, ExpertsRowsSayWhichTokensTheyAreOf) {
  MemoryCheckpoint checkpoint;
  const MoeOptions options{.moe = {.num_experts = 3, .experts_per_token = 2, .intermediate_size = kWidth},
                           .hidden_size = kWidth};
  add_matrix(checkpoint, "mlp.gate.weight", 3, kWidth);
  for (const char* expert : {"0", "1", "2"}) {
    for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
      add_matrix(checkpoint, std::string("mlp.experts.") + expert + "." + name + ".weight", kWidth, kWidth);
    }
  }
  Loader loader(Loader::Mode::kLoad, checkpoint, *backend_);
  const MoeBlock moe(loader, "", options);
  ASSERT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
  std::vector<float> plain(kTokens * kWidth);
  std::vector<float> adapted(kTokens * kWidth);
  moe(step(), input_, ops::View(plain.data(), kTokens, kWidth));

  // Of all layers; 0 numbers of each row are touched.
  FakeAdapters adapters({}, 1.0f);
  adapters.adapt_only(nullptr);
  moe(step(&adapters), input_, ops::View(adapted.data(), kTokens, kWidth));
  EXPECT_EQ(adapted, plain);
  // The router's rows in order, then each token twice, for its two experts, in gate and up and again in down.
  std::vector<int32_t> in_order(kTokens);
  std::iota(in_order.begin(), in_order.end(), 0);
  std::vector<int32_t> seen = adapters.seen();
  ASSERT_EQ(seen.size(), static_cast<size_t>(5 * kTokens));
  EXPECT_TRUE(std::equal(in_order.begin(), in_order.end(), seen.begin()));
  const auto second = seen.begin() + kTokens;
  const auto third = second + 2 * kTokens;
  EXPECT_TRUE(std::equal(second, third, third)) << "gate and up, and down, have the same rows";
  std::sort(second, third);
  for (int32_t i = 0; i < 2 * kTokens; ++i) EXPECT_EQ(second[i], i / 2);
}

}  // namespace
}  // namespace quire::nn
