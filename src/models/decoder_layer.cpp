#include "models/decoder_layer.h"

namespace quire::models {

ops::View enter_block(const nn::StepContext& step, const nn::StreamNorm& norm, nn::HiddenStates& states,
                      const ops::View& normed, float residual_scale, DType dtype) {
  if (norm.present()) return norm(step, states, normed, dtype, residual_scale);
  states.add_delta(step, residual_scale);
  return states.residual;
}

DecoderLayer::DecoderLayer(nn::Loader& loader, const DecoderShape& shape, const std::string& prefix,
                           const ModelConfig& config, int32_t index)
    : parallel_(shape.parallel), residual_scale_(static_cast<float>(config.residual_scale)) {
  const auto norm = [&](std::string_view name) {
    if (name.empty()) return nn::StreamNorm();
    return nn::StreamNorm(shape.norm, loader, prefix + std::string(name), config.hidden_size, config.norm_eps,
                          config.norm_weight_offset);
  };
  if (shape.has_attention) {
    before_attention_ = norm(shape.before_attention);
    attention_ = shape.attention != nullptr ? shape.attention(loader, prefix, config, index)
                                            : std::make_unique<nn::Attention>(loader, prefix + "self_attn",
                                                                              attention_config(shape, config, index));
    if (shape.beside_attention != nullptr) beside_attention_ = shape.beside_attention(loader, prefix, config, index);
    after_attention_ = norm(shape.after_attention);
  }
  if (!shape.has_mlp) return;
  before_mlp_ = norm(shape.before_mlp);
  mlp_ = shape.feed_forward != nullptr
             ? shape.feed_forward(loader, prefix, config, index)
             : std::make_unique<nn::GatedMlp>(loader, prefix + "mlp", config.hidden_size, config.intermediate_size,
                                              config.mlp_bias, config.activation);
  after_mlp_ = norm(shape.after_mlp);
}

std::vector<nn::KvLayerSpec> DecoderLayer::kv_layers(DType dtype) const {
  std::vector<nn::KvLayerSpec> specs;
  if (attention_ != nullptr) specs.push_back(attention_->kv_layer(dtype));
  if (beside_attention_ != nullptr) specs.push_back(beside_attention_->kv_layer(dtype));
  return specs;
}

void DecoderLayer::attend(const nn::StepContext& step, std::span<const nn::CacheLayer> caches, const ops::ConstView& x,
                          const ops::View& out) const {
  (*attention_)(step, caches[0], *rotary_, x, out);
  if (beside_attention_ == nullptr) return;
  const int64_t mark = step.workspace.mark();
  const ops::View other = step.workspace.take(out.num_rows, out.num_columns);
  (*beside_attention_)(step, caches[1], *rotary_, x, other);
  step(ops::AddArgs{
      .hidden = out.floats(), .delta = other.floats(), .num_tokens = out.num_rows, .size = out.num_columns});
  step.workspace.rewind(mark);
}

DType DecoderLayer::input_dtype(const nn::StepContext& step) const {
  const DType dtype = attention_->input_dtype(step);
  const bool differs = (parallel_ && !before_mlp_.present() && mlp_->input_dtype(step) != dtype) ||
                       (beside_attention_ != nullptr && beside_attention_->input_dtype(step) != dtype);
  return differs ? DType::kF32 : dtype;
}

void DecoderLayer::run(const nn::StepContext& step, std::span<const nn::CacheLayer> caches, nn::HiddenStates& states,
                       const ops::View& normed) const {
  const int64_t mark = step.workspace.mark();
  ops::View x;
  ops::View of_mlp;  // of parallel blocks, behind a norm of its own
  if (attention_ != nullptr) {
    x = enter_block(step, before_attention_, states, normed, residual_scale_, input_dtype(step));
    if (parallel_ && before_mlp_.present()) {
      const ops::View beside = step.workspace.take(normed.num_rows, normed.num_columns);
      of_mlp = before_mlp_(step, states, beside, mlp_->input_dtype(step), /*delta_scale=*/1);
    }
    attend(step, caches, x, states.delta);
    leave(step, after_attention_, states);
  }
  if (mlp_ == nullptr) return;
  if (parallel_) {
    states.add_delta(step, residual_scale_);
    if (before_mlp_.present()) x = of_mlp;
  } else {
    x = enter_block(step, before_mlp_, states, normed, residual_scale_, mlp_->input_dtype(step));
  }
  (*mlp_)(step, x, states.delta);
  leave(step, after_mlp_, states);
  step.workspace.rewind(mark);
}

void DecoderLayer::leave(const nn::StepContext& step, const nn::StreamNorm& norm, nn::HiddenStates& states) {
  if (norm.present()) norm(step, states.delta);
  states.pending = true;
}

}  // namespace quire::models
