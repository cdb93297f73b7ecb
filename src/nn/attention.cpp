#include "nn/attention.h"

#include <numeric>

#include <fmt/format.h>

namespace quire::nn {
namespace {

int64_t query_size(const AttentionConfig& config) {
  return int64_t{config.num_heads} * config.head_dim;
}
int64_t kv_size(const AttentionConfig& config) {
  return int64_t{config.num_kv_heads} * config.head_dim;
}

std::vector<Linear::Part> projections(const std::string& prefix, const AttentionConfig& config) {
  std::vector<Linear::Part> parts;
  const bool gates_apart = config.gate_name != nullptr;
  if (gates_apart) parts.push_back({prefix + "." + config.gate_name, query_size(config)});
  const int64_t gates = config.output_gate && !gates_apart ? query_size(config) : 0;
  parts.push_back({prefix + ".q_proj", query_size(config) + gates, config.bias});
  if (config.stores) parts.push_back({prefix + ".k_proj", kv_size(config), config.bias});
  if (config.stores && !config.keys_are_values) parts.push_back({prefix + ".v_proj", kv_size(config), config.bias});
  return parts;
}

// Of a projection that has each head's query, then its gate: all gates, then all queries, of `heads`.
std::vector<Range> gates_and_queries(const Range& heads, int64_t head_dim) {
  std::vector<Range> ranges;
  for (const int64_t place : {head_dim, int64_t{0}}) {
    for (int64_t head = heads.first; head < heads.end(); ++head)
      ranges.push_back({2 * head * head_dim + place, head_dim});
  }
  return ranges;
}

// Of a projection that has the heads of each group of keys beside each other: those queries, then those keys, then
// those values.
std::vector<Range> rows_of_groups(const HeadShare& share, const AttentionConfig& config) {
  const int64_t dim = config.head_dim;
  const int64_t queries = config.num_heads / config.num_kv_heads;
  const auto row = [&](int64_t group, int64_t head) { return (group * (queries + 2) + head) * dim; };
  std::vector<Range> ranges;
  for (int64_t head = share.heads.first; head < share.heads.end(); ++head)
    ranges.push_back({row(head / queries, head % queries), dim});
  for (const int64_t place : {queries, queries + 1}) {
    for (int64_t group = share.kv_heads.first; group < share.kv_heads.end(); ++group)
      ranges.push_back({row(group, place), dim});
  }
  return ranges;
}

// The weights of those heads, of one tensor or of one of each. Nothing when planning.
std::vector<float> weights_of_heads(Loader& loader, const std::string& name, int64_t num_heads, int64_t head_dim,
                                    const Range& own) {
  const Shape all{num_heads, head_dim};
  if (!loader.has_shape(name + ".weight", all) && loader.has(name + ".norms.0.weight")) {
    std::vector<Loader::Vector> parts;
    for (int64_t head = 0; head < num_heads; ++head) {
      const bool is_own = head >= own.first && head < own.end();
      const std::string own_name = fmt::format("{}.norms.{}.weight", name, head);
      if (is_own) parts.push_back({own_name, head_dim});
      // Others' are no strangers in the file. The first that is missing is enough for the error.
      if (!is_own && !loader.weight({own_name, {head_dim}}).present()) break;
    }
    return loader.vectors(parts);
  }
  std::vector<float> weights = loader.floats(loader.weight({name + ".weight", all}));
  if (weights.empty()) return weights;
  return {weights.begin() + own.first * head_dim, weights.begin() + own.end() * head_dim};
}

}  // namespace

HeadShare share_of_heads(Loader& loader, const Linear::Part& second, int32_t num_heads, int32_t num_kv_heads,
                         int64_t head_dim, int rank, bool cuts_groups) {
  const HeadShare all{{0, num_heads}, {0, num_kv_heads}};
  const Shard& shard = loader.shard();
  if (shard.is_whole()) return all;
  int64_t grain =
      loader.column_grain({second.prefix + ".weight", {second.rows, num_heads * head_dim}, second.transposed});
  if (loader.rounds()) grain = std::lcm(grain, info(DType::kQ8_0).block_values);
  const int64_t unit = std::lcm(grain, head_dim) / head_dim;
  auto share =
      share_heads(num_heads, num_kv_heads, unit, rank, shard.size, cuts_groups && loader.backend().cuts_groups());
  if (share.ok()) return *share;
  loader.fail(share.status());
  return all;
}

Attention::Attention(Loader& loader, const std::string& prefix, const AttentionConfig& config)
    : Attention(loader, prefix, config, projections(prefix, config),
                {prefix + "." + config.output_name, config.hidden_size, config.output_bias}) {}

Attention::Attention(Loader& loader, const std::string& prefix, const AttentionConfig& config,
                     std::vector<Linear::Part> qkv, const Linear::Part& output)
    : config_(config) {
  const Shard& shard = loader.shard();
  const auto share_of_rank = [&](int rank) {
    return share_of_heads(loader, output, config.num_heads, config.num_kv_heads, config.head_dim, rank,
                          /*cuts_groups=*/true);
  };
  const HeadShare share = share_of_rank(shard.rank);
  if (!shard.is_whole()) take_share(loader, share, qkv);
  if (config.output_gate && config.gate_name == nullptr) qkv[0].taken = gates_and_queries(share.heads, config.head_dim);
  if (config.grouped_rows) qkv[0].taken = rows_of_groups(share, config);
  const int64_t dim = config.head_dim;
  qkv_ = {loader, std::move(qkv), config.hidden_size};
  output_ = {loader,
             {output},
             query_size(config),
             WeightRole::kProjection,
             Linear::Inputs{{share.heads.first * dim, share.heads.count * dim}}};
  qkv_.keep_inputs_precise();  // where rounding does most harm: docs/performance.md#accuracy
  make_norms(loader, prefix, config, share);
  for (int rank = 0; rank < shard.size && config.qk_norm == QkNorm::kProjection && !shard.is_whole(); ++rank) {
    const HeadShare theirs = share_of_rank(rank);
    query_columns_.push_back({theirs.heads.first * dim, theirs.heads.count * dim});
    key_columns_.push_back({theirs.kv_heads.first * dim, theirs.kv_heads.count * dim});
  }
  if (config.value_norm && config.stores) {
    value_weight_ = {loader, loader.made(dim, [&] { return std::vector<float>(static_cast<size_t>(dim), 1.0F); })};
  }
  // GGUF's parameters all have a suffix.
  const std::string sinks = prefix + (loader.has(prefix + ".sinks.weight") ? ".sinks.weight" : ".sinks");
  if (!config.sinks) return;
  const Loader::Vector own{sinks, config.num_heads, {share.heads}};
  sinks_ = {loader, loader.vectors({&own, 1})};
}

void Attention::make_norms(Loader& loader, const std::string& prefix, const AttentionConfig& whole,
                           const HeadShare& share) {
  const int64_t dim = whole.head_dim;
  const std::string query_name = prefix + "." + whole.query_norm_name;
  const std::string key_name = prefix + "." + whole.key_norm_name;
  if (whole.qk_norm == QkNorm::kNone) return;
  if (whole.qk_norm == QkNorm::kLayerOfHead) {
    std::vector<float> weights = weights_of_heads(loader, query_name, whole.num_heads, dim, share.heads);
    const std::vector<float> keys = weights_of_heads(loader, key_name, whole.num_kv_heads, dim, share.kv_heads);
    weights.insert(weights.end(), keys.begin(), keys.end());
    head_weights_ = {loader, weights};
    return;
  }
  if (whole.qk_norm == QkNorm::kHeadPlain) {
    const auto ones = [&] { return std::vector<float>(static_cast<size_t>(dim), 1.0F); };
    query_norm_ = {loader, loader.made(dim, ones), dim, whole.norm_eps};
    key_norm_ = {loader, loader.made(dim, ones), dim, whole.norm_eps};
    return;
  }
  const bool of_all = whole.qk_norm == QkNorm::kProjection;
  query_norm_ = {loader, query_name, of_all ? query_size(whole) : dim, whole.norm_eps, whole.norm_weight_offset};
  if (!whole.stores) return;
  key_norm_ = {loader, key_name, of_all ? kv_size(whole) : dim, whole.norm_eps, whole.norm_weight_offset};
}

void Attention::take_share(Loader& loader, const HeadShare& share, std::vector<Linear::Part>& qkv) {
  const int64_t dim = config_.head_dim;
  const int64_t queries = query_size(config_);
  const int64_t keys = kv_size(config_);
  const Range own_keys{share.kv_heads.first * dim, share.kv_heads.count * dim};
  // Of queries, keys and values above each other, in one part or several.
  const std::vector<Range> rows = {{share.heads.first * dim, share.heads.count * dim},
                                   {queries + own_keys.first, own_keys.count},
                                   {queries + keys + own_keys.first, own_keys.count}};
  int64_t first = 0;
  for (Linear::Part& part : qkv) {
    const bool is_gates = config_.gate_name != nullptr && &part == &qkv.front();
    const bool has_gates = config_.output_gate && config_.gate_name == nullptr && first == 0;
    const int64_t count = has_gates ? queries : part.rows;
    part.taken = within(rows, {first, count});
    if (!is_gates) first += count;
  }
  const int64_t stored = !config_.stores ? 0 : config_.keys_are_values ? keys : 2 * keys;
  if (first != queries + stored)
    loader.fail(internal_error("{} rows of projections for {} heads", first, config_.num_heads));
  const int32_t group = config_.num_heads / config_.num_kv_heads;
  if (share.kv_heads.count > 1 && share.heads.count != share.kv_heads.count * group) {
    group_ = group;
    heads_before_ = static_cast<int32_t>(share.heads.first - share.kv_heads.first * group);
  }
  config_.num_heads = static_cast<int32_t>(share.heads.count);
  config_.num_kv_heads = static_cast<int32_t>(share.kv_heads.count);
  loader.tell_kv_heads(share.kv_heads);
}

void Attention::norm_heads(const StepContext& step, const ops::View& heads) const {
  const int64_t mark = step.workspace.mark();
  const ops::View beside = step.workspace.take(heads.num_rows, heads.num_columns);
  step.copy(heads, beside);
  step(ops::LayerNormArgs{.hidden = beside.floats(),
                          .eps = static_cast<float>(config_.norm_eps),
                          .num_tokens = beside.num_rows * (beside.num_columns / config_.head_dim),
                          .size = config_.head_dim,
                          .out = beside.floats()});
  step.multiply(head_weights_.data(), beside);
  step.copy(beside, heads);
  step.workspace.rewind(mark);
}

void Attention::norm_projection(const StepContext& step, const RmsNorm& norm,
                                const std::vector<comm::ColumnRange>& columns, const ops::View& own) const {
  if (columns.empty()) return norm(step, own);
  over_all_columns(step, columns, own, [&](const ops::View& all) { norm(step, all); });
}

Attention::Projected Attention::project(const StepContext& step, const CacheLayer& layer, const Rotary& rotary,
                                        const ops::ConstView& x) const {
  const int64_t n = x.num_rows;
  const int64_t queries = query_size(config_);
  const int64_t keys = kv_size(config_);
  const ops::View all = step.workspace.take(n, gate_size() + (config_.stores ? queries + 2 * keys : queries));
  qkv_(step, x, all.columns(0, qkv_.out_features()));
  const ops::View qkv = all.columns(gate_size(), all.num_columns - gate_size());
  const Projected projected{qkv.columns(0, queries), all.columns(0, gate_size())};
  if (!config_.stores) {
    layer.wait(step.backend);
    prepare_queries(step, rotary, qkv);
    return projected;
  }
  const ops::View values = qkv.columns(queries + keys, keys);
  if (config_.keys_are_values) step.copy(qkv.columns(queries, keys), values);
  if (config_.value_norm) {
    step(ops::RmsNormArgs{.hidden = values.strided_floats(),
                          .weight = value_weight_.data(),
                          .eps = static_cast<float>(config_.norm_eps),
                          .num_tokens = n,
                          .num_groups = config_.num_kv_heads,
                          .size = config_.head_dim,
                          .token_stride = values.row_stride,
                          .out = values});
  }
  if (config_.qk_norm == QkNorm::kProjection) {
    norm_projection(step, query_norm_, query_columns_, qkv.columns(0, queries));
    norm_projection(step, key_norm_, key_columns_, qkv.columns(queries, keys));
  }
  if (config_.qkv_limit > 0) {
    QUIRE_CHECK(qkv.is_dense());
    step(ops::ScaleArgs{.values = qkv.floats(), .limit = config_.qkv_limit, .num_rows = n, .size = qkv.num_columns});
  }
  if (config_.qk_norm == QkNorm::kLayerOfHead) norm_heads(step, qkv.columns(0, queries + keys));
  const bool norms_rotated = config_.qk_norm == QkNorm::kHeadRotated;
  if (norms_rotated) {
    rotary(step, qkv.columns(0, queries + keys), config_.num_heads + config_.num_kv_heads, config_.head_dim);
    norm_each_head(step, query_norm_, qkv.columns(0, queries));
    norm_each_head(step, key_norm_, qkv.columns(queries, keys));
  }
  layer.wait(step.backend);
  ops::PrepareHeadsArgs prepare{.heads = qkv.strided_floats(),
                                .token_stride = qkv.row_stride,
                                .num_tokens = n,
                                .num_heads = config_.num_heads,
                                .slots = step.batch.group_of(layer).slots,
                                .cache = layer.view};
  if (config_.qk_norm == QkNorm::kHead || config_.qk_norm == QkNorm::kHeadPlain) {
    prepare.query_weight = query_norm_.weight();
    prepare.key_weight = key_norm_.weight();
    prepare.eps = query_norm_.eps();
  }
  if (norms_rotated) {
    step(prepare);
  } else {
    rotary.prepare_heads(step, prepare);
  }
  rotary.multiply_queries(step, projected.queries, config_.num_heads);
  if (step.adapters != nullptr) step.adapters->give_keys(step, layer);
  return projected;
}

void Attention::norm_each_head(const StepContext& step, const RmsNorm& norm, const ops::View& heads) const {
  step(ops::RmsNormArgs{.hidden = heads.strided_floats(),
                        .weight = norm.weight(),
                        .eps = norm.eps(),
                        .num_tokens = heads.num_rows,
                        .num_groups = heads.num_columns / config_.head_dim,
                        .size = config_.head_dim,
                        .token_stride = heads.row_stride,
                        .out = heads});
}

void Attention::prepare_queries(const StepContext& step, const Rotary& rotary, const ops::View& queries) const {
  if (config_.qk_norm == QkNorm::kHead) norm_each_head(step, query_norm_, queries);
  rotary(step, queries, config_.num_heads, config_.head_dim);
  rotary.multiply_queries(step, queries, config_.num_heads);
}

void Attention::attend(const StepContext& step, const Batch& asking, const CacheLayer& layer, const Rotary& rotary,
                       const ops::ConstView& x, const ops::View& out) const {
  const int64_t mark = step.workspace.mark();
  const int64_t n = asking.num_tokens;
  const Projected projected = project(step, layer, rotary, x);
  const ops::View query = projected.queries.rows(x.num_rows - n, n);
  const ops::View context = step.workspace.take(n, query_size(config_));  // [num_tokens, num_heads, head_dim]
  ops::PagedAttentionArgs attention = asking.attention_over(layer);
  attention.queries = query.strided_floats();
  attention.query_stride = query.row_stride;
  attention.num_heads = config_.num_heads;
  attention.group = group_;
  attention.heads_before = heads_before_;
  attention.scale = config_.scale;
  attention.window = config_.window;
  attention.both_ways = config_.both_ways;
  attention.soft_cap = config_.soft_cap;
  attention.sinks = sinks_.data();
  attention.out = context.floats();
  step(attention);
  if (config_.output_gate) step.gate(Activation::kSigmoid, projected.gates.rows(x.num_rows - n, n), context);
  output_(step, context, out);
  step.workspace.rewind(mark);
}

void Attention::operator()(const StepContext& step, const CacheLayer& layer, const Rotary& rotary,
                           const ops::ConstView& x, const ops::View& out) const {
  attend(step, step.batch, layer, rotary, x, out);
}

void Attention::store(const StepContext& step, const CacheLayer& layer, const Rotary& rotary,
                      const ops::ConstView& x) const {
  const int64_t mark = step.workspace.mark();
  (void)project(step, layer, rotary, x);
  step.workspace.rewind(mark);
}

}  // namespace quire::nn
