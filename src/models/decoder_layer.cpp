#include "models/decoder_layer.h"

namespace quire::models {

ops::View enter_block(const nn::StepContext& step, const nn::RmsNorm& norm, nn::HiddenStates& states,
                      const ops::View& normed, float residual_scale) {
  if (norm.present()) {
    norm(step, states, normed, residual_scale);
    return normed;
  }
  states.add_delta(step, residual_scale);
  return states.residual;
}

DecoderLayer::DecoderLayer(nn::Loader& loader, const DecoderShape& shape, const std::string& prefix,
                           const ModelConfig& config, int32_t index)
    : residual_scale_(static_cast<float>(config.residual_scale)) {
  const auto norm = [&](std::string_view name) {
    if (name.empty()) return nn::RmsNorm();
    return nn::RmsNorm(loader, prefix + std::string(name), config.hidden_size, config.norm_eps,
                       config.norm_weight_offset);
  };
  before_attention_ = norm(shape.before_attention);
  attention_ = shape.attention != nullptr ? shape.attention(loader, prefix, config, index)
                                          : std::make_unique<nn::Attention>(loader, prefix + "self_attn",
                                                                            attention_config(shape, config, index));
  after_attention_ = norm(shape.after_attention);
  before_mlp_ = norm(shape.before_mlp);
  mlp_ = shape.feed_forward != nullptr
             ? shape.feed_forward(loader, prefix, config, index)
             : std::make_unique<nn::GatedMlp>(loader, prefix + "mlp", config.hidden_size, config.intermediate_size,
                                              config.mlp_bias, config.activation);
  after_mlp_ = norm(shape.after_mlp);
}

void DecoderLayer::run(const nn::StepContext& step, const nn::CacheLayer& cache, nn::HiddenStates& states,
                       const ops::View& normed) const {
  ops::View x = enter_block(step, before_attention_, states, normed.as(attention_->input_dtype(step)), residual_scale_);
  (*attention_)(step, cache, *rotary_, x, states.delta);
  leave(step, after_attention_, states);
  x = enter_block(step, before_mlp_, states, normed.as(mlp_->input_dtype(step)), residual_scale_);
  (*mlp_)(step, x, states.delta);
  leave(step, after_mlp_, states);
}

void DecoderLayer::leave(const nn::StepContext& step, const nn::RmsNorm& norm, nn::HiddenStates& states) {
  if (norm.present()) norm(step, states.delta);
  states.pending = true;
}

}  // namespace quire::models
