#include "nn/attention.h"

#include <numeric>

namespace quire::nn {
namespace {

int64_t query_size(const AttentionConfig& config) {
  return int64_t{config.num_heads} * config.head_dim;
}
int64_t kv_size(const AttentionConfig& config) {
  return int64_t{config.num_kv_heads} * config.head_dim;
}

std::vector<Linear::Part> projections(const std::string& prefix, const AttentionConfig& config) {
  std::vector<Linear::Part> parts = {
      {prefix + ".q_proj", query_size(config) * (config.output_gate ? 2 : 1), config.bias}};
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

}  // namespace

HeadShare share_of_heads(Loader& loader, const Linear::Part& second, int32_t num_heads, int32_t num_kv_heads,
                         int64_t head_dim, int rank) {
  const HeadShare all{{0, num_heads}, {0, num_kv_heads}};
  const Shard& shard = loader.shard();
  if (shard.is_whole()) return all;
  int64_t grain =
      loader.column_grain({second.prefix + ".weight", {second.rows, num_heads * head_dim}, second.transposed});
  if (loader.rounds()) grain = std::lcm(grain, info(DType::kQ8_0).block_values);
  const int64_t unit = std::lcm(grain, head_dim) / head_dim;
  auto share = share_heads(num_heads, num_kv_heads, unit, rank, shard.size);
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
    return share_of_heads(loader, output, config.num_heads, config.num_kv_heads, config.head_dim, rank);
  };
  const HeadShare share = share_of_rank(shard.rank);
  for (int rank = 0; rank < shard.size && !shard.is_whole(); ++rank) {
    const HeadShare theirs = share_of_rank(rank);
    loader.add_load(rank, 2 * (theirs.heads.count + theirs.kv_heads.count) * config.head_dim * config.hidden_size);
  }
  if (!shard.is_whole()) take_share(loader, share, qkv);
  if (config.output_gate) qkv[0].taken = gates_and_queries(share.heads, config.head_dim);
  const int64_t dim = config.head_dim;
  qkv_ = {loader, std::move(qkv), config.hidden_size};
  output_ = {loader,
             {output},
             query_size(config),
             WeightRole::kProjection,
             Linear::Inputs{{share.heads.first * dim, share.heads.count * dim}}};
  qkv_.keep_inputs_precise();  // where rounding does most harm: docs/performance.md#accuracy
  if (config.qk_norm != QkNorm::kNone) {
    const bool per_head = config.qk_norm == QkNorm::kHead;
    const auto norm = [&](const char* name, int64_t whole) {
      return RmsNorm(loader, prefix + "." + name, per_head ? config.head_dim : whole, config.norm_eps,
                     config.norm_weight_offset);
    };
    query_norm_ = norm(config.query_norm_name, query_size(config));
    if (config.stores) key_norm_ = norm(config.key_norm_name, kv_size(config));
    for (int rank = 0; rank < shard.size && !per_head && !shard.is_whole(); ++rank) {
      const HeadShare theirs = share_of_rank(rank);
      query_columns_.push_back({theirs.heads.first * dim, theirs.heads.count * dim});
      key_columns_.push_back({theirs.kv_heads.first * dim, theirs.kv_heads.count * dim});
    }
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
    const int64_t count = config_.output_gate && first == 0 ? queries : part.rows;
    part.taken = within(rows, {first, count});
    first += count;
  }
  if (first != queries + 2 * keys)
    loader.fail(internal_error("{} rows of projections for {} heads", first, config_.num_heads));
  config_.num_heads = static_cast<int32_t>(share.heads.count);
  config_.num_kv_heads = static_cast<int32_t>(share.kv_heads.count);
  loader.tell_kv_heads(share.kv_heads);
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
  layer.wait(step.backend);
  ops::PrepareHeadsArgs prepare{.heads = qkv.strided_floats(),
                                .token_stride = qkv.row_stride,
                                .num_tokens = n,
                                .num_heads = config_.num_heads,
                                .slots = step.batch.group_of(layer).slots,
                                .cache = layer.view};
  if (config_.qk_norm == QkNorm::kHead) {
    prepare.query_weight = query_norm_.weight();
    prepare.key_weight = key_norm_.weight();
    prepare.eps = query_norm_.eps();
  }
  rotary.prepare_heads(step, prepare);
  if (step.adapters != nullptr) step.adapters->give_keys(step, layer);
  return projected;
}

void Attention::prepare_queries(const StepContext& step, const Rotary& rotary, const ops::View& queries) const {
  if (config_.qk_norm == QkNorm::kHead) {
    step(ops::RmsNormArgs{.hidden = queries.strided_floats(),
                          .weight = query_norm_.weight(),
                          .eps = query_norm_.eps(),
                          .num_tokens = queries.num_rows,
                          .num_groups = config_.num_heads,
                          .size = config_.head_dim,
                          .token_stride = queries.row_stride,
                          .out = queries});
  }
  rotary(step, queries, config_.num_heads, config_.head_dim);
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
