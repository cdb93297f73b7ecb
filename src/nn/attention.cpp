#include "nn/attention.h"

namespace quire::nn {
namespace {

int64_t query_size(const AttentionConfig& config) {
  return int64_t{config.num_heads} * config.head_dim;
}
int64_t kv_size(const AttentionConfig& config) {
  return int64_t{config.num_kv_heads} * config.head_dim;
}

}  // namespace

Attention::Attention(Loader& loader, const std::string& prefix, const AttentionConfig& config)
    : Attention(loader, prefix, config,
                {{prefix + ".q_proj", query_size(config), config.bias},
                 {prefix + ".k_proj", kv_size(config), config.bias},
                 {prefix + ".v_proj", kv_size(config), config.bias}},
                {prefix + "." + config.output_name, config.hidden_size, config.output_bias}) {}

Attention::Attention(Loader& loader, const std::string& prefix, const AttentionConfig& config,
                     std::vector<Linear::Part> qkv, const Linear::Part& output)
    : config_(config), qkv_(loader, std::move(qkv), config.hidden_size), output_(loader, {output}, query_size(config)) {
  qkv_.keep_inputs_precise();  // where rounding does most harm: docs/performance.md#accuracy
  if (config.qk_norm != QkNorm::kNone) {
    const bool per_head = config.qk_norm == QkNorm::kHead;
    const auto norm = [&](const char* name, int64_t whole) {
      return RmsNorm(loader, prefix + name, per_head ? config.head_dim : whole, config.norm_eps,
                     config.norm_weight_offset);
    };
    query_norm_ = norm(".q_norm", query_size(config));
    key_norm_ = norm(".k_norm", kv_size(config));
  }
  // GGUF's parameters all have a suffix.
  const std::string sinks = prefix + (loader.has(prefix + ".sinks.weight") ? ".sinks.weight" : ".sinks");
  if (config.sinks) sinks_ = {loader, loader.vector(sinks, config.num_heads)};
}

void Attention::operator()(const StepContext& step, const CacheLayer& layer, const Rotary& rotary,
                           const ops::ConstView& x, const ops::View& out) const {
  const CacheGroup& group = step.batch.group_of(layer);
  const int64_t mark = step.workspace.mark();
  const int64_t n = x.num_rows;
  const ops::View qkv = step.workspace.take(n, qkv_.out_features());  // [num_tokens, q | k | v]
  const ops::View query = qkv.columns(0, query_size(config_));
  qkv_(step, x, qkv);
  if (config_.qk_norm == QkNorm::kProjection) {
    query_norm_(step, query);
    key_norm_(step, qkv.columns(query_size(config_), kv_size(config_)));
  }
  layer.wait(step.backend);
  ops::PrepareHeadsArgs prepare{.heads = qkv.floats(),
                                .token_stride = qkv.row_stride,
                                .num_tokens = n,
                                .num_heads = config_.num_heads,
                                .slots = group.slots,
                                .cache = layer.view};
  if (config_.qk_norm == QkNorm::kHead) {
    prepare.query_weight = query_norm_.weight();
    prepare.key_weight = key_norm_.weight();
    prepare.eps = query_norm_.eps();
  }
  rotary.prepare_heads(step, prepare);
  const ops::View context = step.workspace.take(n, query_size(config_));  // [num_tokens, num_heads, head_dim]
  ops::PagedAttentionArgs attention = step.batch.attention_over(layer);
  attention.queries = query.strided_floats();
  attention.query_stride = query.row_stride;
  attention.num_heads = config_.num_heads;
  attention.scale = config_.scale;
  attention.window = config_.window;
  attention.soft_cap = config_.soft_cap;
  attention.sinks = sinks_.data();
  attention.out = context.floats();
  step(attention);
  output_(step, context, out);
  step.workspace.rewind(mark);
}

}  // namespace quire::nn
