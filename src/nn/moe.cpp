#include "nn/moe.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace quire::nn {
namespace {

// Names of the router's projection, with the block's own prefix.
struct BlockName {
  std::string_view block;
  std::string_view router;
};
constexpr BlockName kBlocks[] = {{"mlp.", "gate"},
                                 {"block_sparse_moe.", "gate"},
                                 {"mlp.", "router"},
                                 {"block_sparse_moe.", "router.layer"},
                                 {"feed_forward.", "gate"},
                                 {"", "router.proj"},
                                 {"mixer.", "gate"},
                                 {"mlp.", "gate.wg"},
                                 {"feed_forward.", "router"},
                                 {"mlp.", "router.gate"}};
constexpr std::array<std::string_view, 3> kSharedExperts = {"shared_expert", "shared_experts", "shared_mlp"};
// Of the router, or of the block.
constexpr std::array<std::string_view, 2> kCorrectionBiases = {".e_score_correction_bias", ".e_score_correction.bias"};
constexpr std::array<std::string_view, 4> kCorrectionBiasesOfBlocks = {
    "moe_statics.e_score_correction_bias", "e_score_correction_bias", "expert_bias", "expert_bias.bias"};

// The first of the names that the checkpoint has, or the first of all, so that the error says what is missing.
std::string found(const Loader& loader, const std::string& prefix, std::span<const std::string_view> names,
                  std::string_view suffix) {
  for (const std::string_view name : names) {
    const std::string whole = prefix + std::string(name) + std::string(suffix);
    if (loader.has_weight(whole)) return prefix + std::string(name);
  }
  return prefix + std::string(names[0]);
}

const BlockName& block_of(const Loader& loader, const std::string& prefix) {
  for (const BlockName& name : kBlocks) {
    if (loader.has_weight(prefix + std::string(name.block) + std::string(name.router) + ".weight")) return name;
  }
  return kBlocks[0];
}

// Its name in the checkpoint, or the usual one, so that the error says what is missing.
std::string correction_bias_of(const Loader& loader, const std::string& block, const std::string& router) {
  for (const std::string_view name : kCorrectionBiases) {
    if (std::string whole = router + std::string(name); loader.has(whole)) return whole;
  }
  for (const std::string_view name : kCorrectionBiasesOfBlocks) {
    if (std::string whole = block + std::string(name); loader.has(whole)) return whole;
  }
  return router + std::string(kCorrectionBiases[0]);
}

ExpertShape expert_shape(const MoeOptions& options) {
  return {.num_experts = options.moe.num_experts,
          .hidden_size = options.hidden_size,
          .intermediate_size = options.moe.intermediate_size,
          .gated = options.moe.gated,
          .bias = options.moe.expert_bias,
          .stacks_transposed = options.stacks_transposed,
          .stacks_interleaved = options.stacks_interleaved};
}

int32_t* take_integers(const StepContext& step, int64_t count) {
  static_assert(sizeof(int32_t) == sizeof(float));
  return reinterpret_cast<int32_t*>(step.workspace.take(count));
}

}  // namespace

MoeBlock::MoeBlock(Loader& loader, const std::string& prefix, const MoeOptions& options) : options_(options) {
  const MoeConfig& moe = options.moe;
  const BlockName& name = block_of(loader, prefix);
  const std::string block = prefix + std::string(name.block);
  const std::string router = block + std::string(name.router);
  const int64_t router_size = options.router_size > 0 ? options.router_size : options.hidden_size;
  router_ = {loader, router, router_size, moe.num_experts, moe.router_bias, WeightRole::kExact};
  if (moe.correction_bias) {
    correction_bias_ = {loader, loader.vector(correction_bias_of(loader, block, router), moe.num_experts)};
  }
  if (moe.expert_scales) {
    expert_scales_ = {loader, loader.vector(block + "router.per_expert_scale", moe.num_experts)};
  }
  ExpertShape shape = expert_shape(options);
  ExpertLinear::share(loader, block, shape);
  experts_ = shape.experts;
  options_.moe.intermediate_size = shape.own.count;
  gate_and_up_ = ExpertLinear::gate_and_up(loader, block, shape);
  down_ = ExpertLinear::down(loader, block, shape);
  if (moe.shared_intermediate_size == 0) return;
  // It is added up with the experts.
  const std::string shared = found(loader, block, kSharedExperts, ".down_proj.weight");
  if (moe.gated) {
    shared_ = std::make_unique<GatedMlp>(loader, shared, options.hidden_size, moe.shared_intermediate_size,
                                         options.shared_bias, options.activation, /*is_sum=*/false);
  } else {
    shared_ = std::make_unique<PlainMlp>(
        loader, Linear::Part{shared + ".up_proj", moe.shared_intermediate_size, options.shared_bias},
        Linear::Part{shared + ".down_proj", options.hidden_size, options.shared_bias}, options.activation,
        /*is_sum=*/false);
  }
  if (!moe.shared_gate) return;
  shared_gate_ = {loader, block + "shared_expert_gate", options.hidden_size, 1, /*bias=*/false, WeightRole::kExact};
}

MoeBlock::Routes MoeBlock::route(const StepContext& step, const ops::ConstView& x) const {
  const MoeConfig& moe = options_.moe;
  const int64_t pairs = x.num_rows * moe.experts_per_token;
  const ops::View logits = step.workspace.take(x.num_rows, moe.num_experts);
  router_(step, x, logits);
  const Routes routes{.weights = step.workspace.take(pairs),
                      .rows = take_integers(step, pairs),
                      .tokens = take_integers(step, pairs),
                      .offsets = take_integers(step, moe.num_experts + 1)};
  step(ops::MoeRoutingArgs{.logits = logits.floats(),
                           .correction_bias = correction_bias_.data(),
                           .expert_scales = expert_scales_.data(),
                           .num_tokens = x.num_rows,
                           .num_experts = moe.num_experts,
                           .experts_per_token = moe.experts_per_token,
                           .score = moe.score,
                           .normalise = moe.normalise,
                           .sum_offset = static_cast<float>(moe.sum_offset),
                           .scale = static_cast<float>(moe.scale),
                           .num_groups = moe.num_groups,
                           .groups_per_token = moe.groups_per_token,
                           .group_score = moe.group_score,
                           .first_expert = static_cast<int32_t>(experts_.first),
                           .end_expert = static_cast<int32_t>(experts_.end()),
                           .weights = routes.weights,
                           .rows = routes.rows,
                           .tokens = routes.tokens,
                           .offsets = routes.offsets});
  return routes;
}

void MoeBlock::activate(const StepContext& step, const ops::ConstView& in, const ops::View& out) const {
  const MoeConfig& moe = options_.moe;
  if (moe.clamp_limit > 0) {
    return step(ops::ClampedSwigluArgs{.in = in.floats(),
                                       .num_tokens = out.num_rows,
                                       .size = out.num_columns,
                                       .alpha = static_cast<float>(moe.clamp_alpha),
                                       .limit = static_cast<float>(moe.clamp_limit),
                                       .out = out.floats()});
  }
  step(ops::ActivationArgs{.function = options_.activation,
                           .gated = moe.gated,
                           .in = in,
                           .num_tokens = out.num_rows,
                           .size = out.num_columns,
                           .out = out});
}

void MoeBlock::hand_out(const StepContext& step, const ops::ConstView& x, const Routes& routes,
                        const ops::View& rows) const {
  const Mirrored<int32_t> tokens = ops::made_on_device(step.backend, routes.tokens);
  if (!options_.moe.weighs_inputs) {
    return step(ops::GatherRowsArgs{
        .in = x.floats(), .size = x.num_columns, .rows = tokens, .num_rows = rows.num_rows, .out = rows.floats()});
  }
  // A token has one row, so that its weight is found as its numbers are.
  float* weights = step.workspace.take(rows.num_rows);
  step(ops::GatherRowsArgs{.in = routes.weights, .size = 1, .rows = tokens, .num_rows = rows.num_rows, .out = weights});
  step(ops::MoeCombineArgs{.experts = x.floats(),
                           .rows = routes.tokens,
                           .weights = weights,
                           .experts_per_token = 1,
                           .num_tokens = rows.num_rows,
                           .size = rows.num_columns,
                           .out = rows.floats()});
}

void MoeBlock::gather(const StepContext& step, const Routes& routes, const ops::View& rows,
                      const ops::View& shared_gate, const ops::View& out) const {
  if (options_.moe.weighs_inputs) {
    // Those of experts that other ranks have were given nothing, and are that still.
    const ops::View own = step.workspace.take(out.num_rows, out.num_columns);
    step(ops::GatherRowsArgs{.in = rows.floats(),
                             .size = rows.num_columns,
                             .rows = ops::made_on_device(step.backend, routes.rows),
                             .num_rows = out.num_rows,
                             .out = shared_ == nullptr ? out.floats() : own.floats()});
    if (shared_ == nullptr) return;
    return step(ops::AddArgs{
        .hidden = out.floats(), .delta = own.floats(), .num_tokens = out.num_rows, .size = out.num_columns});
  }
  step(ops::MoeCombineArgs{.experts = rows.floats(),
                           .rows = routes.rows,
                           .weights = routes.weights,
                           .experts_per_token = options_.moe.experts_per_token,
                           .shared = shared_ == nullptr ? nullptr : out.floats(),
                           .shared_gate = shared_gate.floats(),
                           .num_tokens = out.num_rows,
                           .size = out.num_columns,
                           .out = out.floats()});
}

void MoeBlock::run(const StepContext& step, const ops::ConstView& for_router, const ops::ConstView& x,
                   const ops::View& out) const {
  const MoeConfig& moe = options_.moe;
  const int64_t pairs = x.num_rows * moe.experts_per_token;
  const int64_t mark = step.workspace.mark();
  if (shared_ != nullptr) (*shared_)(step, x, out);
  ops::View shared_gate;
  if (shared_ != nullptr && moe.shared_gate) {
    shared_gate = step.workspace.take(x.num_rows, 1);
    shared_gate_(step, x, shared_gate);
  }
  const Routes routes = route(step, for_router);
  const ops::View rows = step.workspace.take(pairs, options_.hidden_size);  // the experts' inputs, then their outputs
  const ops::View gate_up = step.workspace.take(pairs, (moe.gated ? 2 : 1) * moe.intermediate_size);
  const ops::View activated = step.workspace.take(pairs, moe.intermediate_size);
  const Mirrored<int32_t> tokens = ops::made_on_device(step.backend, routes.tokens);
  const StepContext experts = step.of_rows({RowTokens::Kind::kGathered, tokens});
  hand_out(step, x, routes, rows);
  gate_and_up_(experts, rows, routes.offsets, gate_up);
  activate(step, gate_up, activated);
  // Rows of experts that other ranks have are the tokens' still, and weigh nothing.
  down_(experts, activated, routes.offsets, rows);
  gather(step, routes, rows, shared_gate, out);
  Linear::sum(step, out);
  step.workspace.rewind(mark);
}

}  // namespace quire::nn
