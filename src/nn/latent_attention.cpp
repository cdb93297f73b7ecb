#include "nn/latent_attention.h"

namespace quire::nn {

LatentAttention::LatentAttention(Loader& loader, const std::string& prefix, const LatentAttentionOptions& options)
    : options_(options) {
  const LatentAttentionConfig& sizes = options.sizes;
  const int64_t hidden = options.hidden_size;
  const int64_t queries = options.num_heads * query_head_dim();
  const Linear::Part output{prefix + ".o_proj", hidden, options.bias};
  heads_ =
      share_of_heads(loader, output, options.num_heads, options.num_heads, sizes.value_head_dim, loader.shard().rank)
          .heads;
  Linear::Part up{prefix + (sizes.query_rank > 0 ? ".q_b_proj" : ".q_proj"), queries};
  if (heads_.count < options.num_heads) up.taken = {{heads_.first * query_head_dim(), heads_.count * query_head_dim()}};
  if (sizes.query_rank > 0) {
    query_down_ = {loader, prefix + ".q_a_proj", hidden, sizes.query_rank, options.bias};
    query_norm_ = {loader, prefix + ".q_a_layernorm", sizes.query_rank, options.norm_eps};
    query_up_ = {loader, {up}, sizes.query_rank};
  } else {
    query_up_ = {loader, {up}, hidden};
  }
  kv_down_ = {loader, prefix + ".kv_a_proj_with_mqa", hidden, cached_dim(), options.bias};
  kv_norm_ = {loader, prefix + ".kv_a_layernorm", sizes.kv_rank, options.norm_eps};
  load_up_projections(loader, prefix);
  const int64_t rows = sizes.nope_head_dim + sizes.value_head_dim;
  AdaptableLayer::Part module{.module = prefix + ".kv_b_proj", .size = heads_.count * rows};
  if (heads_.count < options.num_heads)
    module.rows = {options.num_heads * rows, {{heads_.first * rows, heads_.count * rows}}};
  layer_ = loader.adaptable({.kind = AdaptableLayer::Kind::kHeads,
                             .in_features = sizes.kv_rank,
                             .out_features = heads_.count * rows,
                             .num_experts = static_cast<int32_t>(2 * heads_.count),
                             .key_dim = sizes.nope_head_dim,
                             .value_dim = sizes.value_head_dim,
                             .parts = {std::move(module)}});
  output_ = {loader,
             {output},
             int64_t{options.num_heads} * sizes.value_head_dim,
             WeightRole::kProjection,
             Linear::Inputs{{heads_.first * sizes.value_head_dim, heads_.count * sizes.value_head_dim}}};
}

void LatentAttention::pack_head(Loader& loader, const Result<StoredWeight>& matrix, Matrices& out) {
  if (!matrix.ok()) return loader.fail(matrix.status());
  for (auto& packed : loader.place({&*matrix, 1}, WeightRole::kProjection, /*in_group=*/true))
    out.owned.push_back(std::move(packed));
}

void LatentAttention::finish_heads(Loader& loader, Matrices& heads) const {
  std::vector<const ops::PackedMatrix*> matrices;
  for (const auto& matrix : heads.owned) matrices.push_back(matrix.get());
  if (matrices.size() != static_cast<size_t>(heads_.count)) return;  // planned, or failed, which the loader tells
  heads.heads = loader.backend().group(std::move(matrices));
}

LatentAttention::Matrices LatentAttention::pack_heads(Loader& loader, const StoredWeight& stack) const {
  Matrices heads;
  if (!stack.present()) return heads;
  for (int64_t head = heads_.first; head < heads_.end(); ++head)
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
  StoredWeight stored = loader.weight({together, {heads * rows, sizes.kv_rank}}).scaled();
  if (!stored.present()) return;
  // What a format would round is a latent vector, which is cached as it is; the values' product is of sums of such.
  stored.input = {};
  for (int64_t head = heads_.first; head < heads_.end(); ++head) {
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

void LatentAttention::project_heads(const StepContext& step, const Matrices& weights, int32_t first,
                                    const RowAdapters::HeadRows& rows) const {
  step(ops::GroupedLinearArgs{.x = rows.x.strided_floats(),
                              .x_stride = rows.x.row_stride,
                              .num_rows = rows.x.num_rows * heads_.count,
                              .weights = weights.heads.get(),
                              .out = rows.out.strided_floats(),
                              .out_stride = rows.out.row_stride,
                              .x_group_stride = rows.x_head,
                              .out_group_stride = rows.out_head});
  if (step.adapts(layer_.get()))
    step.adapters->add_heads(step, *layer_, first, static_cast<int32_t>(heads_.count), rows);
}

// Queries that meet cached vectors: [num_tokens, heads, kv_rank + rope].
ops::View LatentAttention::project_queries(const StepContext& step, const Rotary& rotary,
                                           const ops::ConstView& x) const {
  const LatentAttentionConfig& sizes = options_.sizes;
  const int64_t n = x.num_rows;
  const int64_t heads = heads_.count;
  ops::ConstView input = x;
  if (sizes.query_rank > 0) {
    const ops::View low = step.workspace.take(n, sizes.query_rank);
    query_down_(step, x, low);
    query_norm_(step, low);
    input = low;
  }
  const ops::View query = step.workspace.take(n, heads * query_head_dim());  // [n, heads, nope + rope]
  query_up_(step, input, query);
  const ops::View rope = query.columns(sizes.nope_head_dim, query.num_columns - sizes.nope_head_dim);
  rotary(step, rope, static_cast<int32_t>(heads), static_cast<int32_t>(query_head_dim()));

  const ops::View latent = step.workspace.take(n, heads * cached_dim());
  project_heads(step, key_up_, 0, {query, query_head_dim(), latent, cached_dim()});
  const ops::View keys = latent.columns(sizes.kv_rank, latent.num_columns - sizes.kv_rank);
  step(ops::CopyHeadsArgs{.in = rope.strided_floats(),
                          .in_token_stride = rope.row_stride,
                          .in_head_stride = query_head_dim(),
                          .num_tokens = n,
                          .num_heads = heads,
                          .size = sizes.rope_head_dim,
                          .out = keys.strided_floats(),
                          .out_token_stride = keys.row_stride,
                          .out_head_stride = cached_dim()});
  rotary.multiply_queries(step, latent, static_cast<int32_t>(heads));
  return latent;
}

void LatentAttention::operator()(const StepContext& step, const CacheLayer& layer, const Rotary& rotary,
                                 const ops::ConstView& x, const ops::View& out) const {
  const LatentAttentionConfig& sizes = options_.sizes;
  const CacheGroup& group = step.batch.group_of(layer);
  const int64_t n = x.num_rows;
  const int64_t heads = heads_.count;
  const int64_t mark = step.workspace.mark();
  const ops::View query = project_queries(step, rotary, x);

  const ops::View kv = step.workspace.take(n, cached_dim());  // [n, latent | key of the position]
  kv_down_(step, x, kv);
  kv_norm_(step, kv.columns(0, sizes.kv_rank));
  rotary(step, kv.columns(sizes.kv_rank, sizes.rope_head_dim), 1, sizes.rope_head_dim);
  layer.wait(step.backend);
  step(ops::KvWriteArgs{
      .keys = kv.floats(), .token_stride = kv.row_stride, .num_tokens = n, .slots = group.slots, .cache = layer.view});

  const ops::View context = step.workspace.take(n, heads * cached_dim());
  ops::PagedAttentionArgs attention = step.batch.attention_over(layer);
  attention.queries = query.floats();
  attention.query_stride = query.row_stride;
  attention.num_heads = static_cast<int32_t>(heads);
  attention.scale = options_.scale;
  attention.out = context.floats();
  attention.value_dim = static_cast<int32_t>(sizes.kv_rank);
  step(attention);
  const ops::View values = step.workspace.take(n, heads * sizes.value_head_dim);
  project_heads(step, value_up_, static_cast<int32_t>(heads_.count),
                {context, cached_dim(), values, sizes.value_head_dim});
  output_(step, values, out);
  step.workspace.rewind(mark);
}

}  // namespace quire::nn
