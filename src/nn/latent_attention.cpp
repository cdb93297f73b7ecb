#include "nn/latent_attention.h"

namespace quire::nn {

LatentAttention::LatentAttention(Loader& loader, const std::string& prefix, const LatentAttentionOptions& options)
    : options_(options) {
  const LatentAttentionConfig& sizes = options.sizes;
  const int64_t hidden = options.hidden_size;
  const int64_t queries = options.num_heads * query_head_dim();
  if (sizes.query_rank > 0) {
    query_down_ = {loader, prefix + ".q_a_proj", hidden, sizes.query_rank, options.bias};
    query_norm_ = {loader, prefix + ".q_a_layernorm", sizes.query_rank, options.norm_eps};
    query_up_ = {loader, prefix + ".q_b_proj", sizes.query_rank, queries};
  } else {
    query_up_ = {loader, prefix + ".q_proj", hidden, queries};
  }
  kv_down_ = {loader, prefix + ".kv_a_proj_with_mqa", hidden, cached_dim(), options.bias};
  kv_norm_ = {loader, prefix + ".kv_a_layernorm", sizes.kv_rank, options.norm_eps};
  load_up_projections(loader, prefix);
  output_ = {loader, prefix + ".o_proj", int64_t{options.num_heads} * sizes.value_head_dim, hidden, options.bias};
}

void LatentAttention::pack_head(Loader& loader, const Result<StoredWeight>& matrix, Matrices& out) {
  if (!matrix.ok()) return loader.fail(matrix.status());
  for (auto& packed : loader.place({&*matrix, 1})) out.owned.push_back(std::move(packed));
}

void LatentAttention::finish_heads(Loader& loader, Matrices& heads) const {
  std::vector<const ops::PackedMatrix*> matrices;
  for (const auto& matrix : heads.owned) matrices.push_back(matrix.get());
  if (matrices.size() != static_cast<size_t>(options_.num_heads)) return;  // planned, or failed, which the loader tells
  heads.heads = loader.backend().group(std::move(matrices));
}

LatentAttention::Matrices LatentAttention::pack_heads(Loader& loader, const StoredWeight& stack) const {
  Matrices heads;
  if (!stack.present()) return heads;
  for (int64_t head = 0; head < options_.num_heads; ++head)
    pack_head(loader, stack.part(head, options_.num_heads), heads);
  finish_heads(loader, heads);
  return heads;
}

void LatentAttention::load_up_projections(Loader& loader, const std::string& prefix) {
  const LatentAttentionConfig& sizes = options_.sizes;
  const int64_t heads = options_.num_heads;
  const int64_t nope = sizes.nope_head_dim;
  const int64_t rows = nope + sizes.value_head_dim;
  const std::string together = prefix + ".kv_b_proj.weight";
  if (!loader.has_weight(together) && loader.has_weight(prefix + ".k_b_proj.weight")) {
    key_up_ = pack_heads(loader, loader.weight({prefix + ".k_b_proj.weight", {heads, sizes.kv_rank, nope}}));
    value_up_ =
        pack_heads(loader, loader.weight({prefix + ".v_b_proj.weight", {heads, sizes.value_head_dim, sizes.kv_rank}}));
    return;
  }
  // A head's keys are turned, which only numbers can be: its values are then numbers as well.
  const StoredWeight stored = loader.weight({together, {heads * rows, sizes.kv_rank}}).scaled();
  if (!stored.present()) return;
  for (int64_t head = 0; head < heads; ++head) {
    const StoredWeight own = stored.part(head, heads);
    pack_head(loader, own.transposed().cut_columns(0, nope), key_up_);
    pack_head(loader, own.cut_rows(nope, sizes.value_head_dim), value_up_);
  }
  finish_heads(loader, key_up_);
  finish_heads(loader, value_up_);
}

DType LatentAttention::input_dtype(const StepContext& step) const {
  const Linear& query = options_.sizes.query_rank > 0 ? query_down_ : query_up_;
  const int64_t n = step.batch.num_tokens;
  const DType dtype = kv_down_.input_dtype(step, n);
  return query.input_dtype(step, n) == dtype ? dtype : DType::kF32;
}

void LatentAttention::project_heads(const StepContext& step, const Matrices& weights, const float* x, int64_t x_head,
                                    int64_t num_tokens, float* out, int64_t out_head) const {
  step(ops::GroupedLinearArgs{.x = x,
                              .x_stride = options_.num_heads * x_head,
                              .num_rows = num_tokens * options_.num_heads,
                              .weights = weights.heads.get(),
                              .out = out,
                              .out_stride = options_.num_heads * out_head,
                              .x_group_stride = x_head,
                              .out_group_stride = out_head});
}

// Queries that meet cached vectors: [num_tokens, heads, kv_rank + rope].
const float* LatentAttention::project_queries(const StepContext& step, const Rotary& rotary, ops::Rows x) const {
  const LatentAttentionConfig& sizes = options_.sizes;
  const int64_t n = step.batch.num_tokens;
  const int64_t heads = options_.num_heads;
  if (sizes.query_rank > 0) {
    float* low = step.workspace.take(n * sizes.query_rank);
    query_down_(step, x, n, low);
    query_norm_(step, low, sizes.query_rank);
    x = low;
  }
  float* query = step.workspace.take(n * heads * query_head_dim());  // [n, heads, nope + rope]
  query_up_(step, x, n, query);
  float* query_rope = query + sizes.nope_head_dim;
  const int64_t stride = heads * query_head_dim();
  rotary(step, query_rope, stride, options_.num_heads, static_cast<int32_t>(query_head_dim()));

  float* latent = step.workspace.take(n * heads * cached_dim());
  project_heads(step, key_up_, query, query_head_dim(), n, latent, cached_dim());
  step(ops::CopyHeadsArgs{.in = query_rope,
                          .in_token_stride = stride,
                          .in_head_stride = query_head_dim(),
                          .num_tokens = n,
                          .num_heads = heads,
                          .size = sizes.rope_head_dim,
                          .out = latent + sizes.kv_rank,
                          .out_token_stride = heads * cached_dim(),
                          .out_head_stride = cached_dim()});
  return latent;
}

void LatentAttention::operator()(const StepContext& step, const CacheLayer& layer, const Rotary& rotary, ops::Rows x,
                                 float* out) const {
  const LatentAttentionConfig& sizes = options_.sizes;
  const CacheGroup& group = step.batch.groups[static_cast<size_t>(layer.group)];
  const int64_t n = step.batch.num_tokens;
  const int64_t heads = options_.num_heads;
  const int64_t mark = step.workspace.mark();
  const float* query = project_queries(step, rotary, x);

  float* kv = step.workspace.take(n * cached_dim());  // [n, latent | key of the position]
  kv_down_(step, x, n, kv);
  kv_norm_(step, kv, cached_dim());
  rotary(step, kv + sizes.kv_rank, cached_dim(), 1, sizes.rope_head_dim);
  layer.wait(step.backend);
  step(ops::KvWriteArgs{
      .keys = kv, .token_stride = cached_dim(), .num_tokens = n, .slots = group.slots, .cache = layer.view});

  float* context = step.workspace.take(n * heads * cached_dim());
  step(ops::PagedAttentionArgs{.queries = query,
                               .query_stride = heads * cached_dim(),
                               .num_heads = options_.num_heads,
                               .cache = layer.view,
                               .num_sequences = step.batch.num_sequences,
                               .query_offsets = step.batch.query_offsets,
                               .context_lengths = step.batch.context_lengths,
                               .block_tables = group.block_tables,
                               .block_table_stride = step.batch.block_table_stride,
                               .span_places = group.span_places,
                               .num_shared_spans = step.batch.num_shared_spans,
                               .tables_checked = step.batch.tables_checked,
                               .scale = options_.scale,
                               .out = context,
                               .value_dim = static_cast<int32_t>(sizes.kv_rank)});
  float* values = step.workspace.take(n * heads * sizes.value_head_dim);
  project_heads(step, value_up_, context, cached_dim(), n, values, sizes.value_head_dim);
  output_(step, values, n, out);
  step.workspace.rewind(mark);
}

}  // namespace quire::nn
