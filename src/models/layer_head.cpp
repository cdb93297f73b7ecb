#include "models/layer_head.h"

#include <algorithm>
#include <utility>

#include "models/decoder_layer.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/rotary.h"

namespace quire::models {
namespace {

class LayerHead final : public Model, public DraftHead {
 public:
  LayerHead(const LayerHeadShape& shape, const ModelConfig& config, int64_t num_positions, nn::Loader& loader)
      : config_(config),
        token_norm_(norm_named(shape.token_norm, loader)),
        state_norm_(norm_named(shape.state_norm, loader)),
        join_(loader, shape.join, 2 * config.hidden_size, config.hidden_size, loader.has(shape.join + ".bias")),
        layer_(loader, shape.decoder, shape.layer, config, 0),
        norm_(shape.norm.empty() ? nn::StreamNorm()
                                 : nn::StreamNorm(shape.decoder.norm, loader, shape.norm, config.hidden_size,
                                                  config.norm_eps, config.norm_weight_offset)),
        rotary_(loader, config.rope, num_positions, {}),
        goes_on_normed_(shape.goes_on_normed) {
    layer_.use_rotary(&rotary_);
  }

  const ModelConfig& config() const override { return config_; }
  std::vector<nn::KvLayerSpec> kv_layers(DType dtype) const override { return layer_.kv_layers(dtype); }
  void use_rows(HeadRows* rows) override { rows_ = rows; }

  Status use_target(const Model& target) override {
    QUIRE_RETURN_IF_ERROR(check_lends_vocabulary(target.config(), config_.hidden_size));
    target_ = &target;
    return {};
  }
  Result<std::vector<int32_t>> taps(const ModelConfig& target) const override {
    return std::vector<int32_t>{target.num_layers + 1};
  }

  // No row is left without its token: the first, too, is of the token that followed.
  void embed(const nn::StepContext& step, nn::HiddenStates& states) const override {
    const int64_t mark = step.workspace.mark();
    const int64_t size = config_.hidden_size;
    const ops::View both = step.workspace.take(step.batch.num_tokens, 2 * size);  // [num_tokens, tokens | states]
    nn::HiddenStates tokens(step, size);
    if (!step.workspace.measures()) {
      QUIRE_CHECK(target_ != nullptr && rows_ != nullptr && rows_->given != nullptr);
      target_->embed(step, tokens);
      step.copy({rows_->given, step.batch.num_tokens, size}, states.residual);
    }
    step.copy(tokens.residual, both.columns(0, size));
    step.copy(states.residual, both.columns(size, size));
    if (token_norm_.present()) token_norm_(step, both.columns(0, size));
    if (state_norm_.present()) state_norm_(step, both.columns(size, size));
    join_(step, both, states.residual);
    step.workspace.rewind(mark);
  }

  void run_layers(const nn::StepContext& step, int32_t /*begin*/, int32_t /*end*/,
                  nn::HiddenStates& states) const override {
    const int64_t mark = step.workspace.mark();
    const ops::View normed = step.workspace.take(step.batch.num_tokens, config_.hidden_size);
    layer_.run(step, step.batch.layers, states, normed);
    step.workspace.rewind(mark);
  }

  ops::View finish(const nn::StepContext& step, nn::HiddenStates& states) const override {
    const ops::View normed = step.workspace.take(step.batch.num_tokens, config_.hidden_size);
    const ops::View out = enter_block(step, norm_, states, normed, static_cast<float>(config_.residual_scale));
    if (rows_ != nullptr) rows_->states = goes_on_normed_ ? out : states.residual;
    return out;
  }

  void logits(const nn::StepContext& step, const ops::ConstView& hidden, const ops::View& out) const override {
    if (target_ != nullptr) target_->logits(step, hidden, out);
  }

 private:
  nn::RmsNorm norm_named(const std::string& name, nn::Loader& loader) const {
    if (name.empty()) return {};
    return {loader, name, config_.hidden_size, config_.norm_eps, config_.norm_weight_offset};
  }

  const ModelConfig config_;
  nn::RmsNorm token_norm_;
  nn::RmsNorm state_norm_;
  nn::Linear join_;
  DecoderLayer layer_;
  nn::StreamNorm norm_;
  nn::Rotary rotary_;
  bool goes_on_normed_;
  HeadRows* rows_ = nullptr;
  const Model* target_ = nullptr;
};

}  // namespace

std::unique_ptr<Model> build_layer_head(const LayerHeadShape& shape, const ModelConfig& config, int64_t num_positions,
                                        nn::Loader& loader) {
  return std::make_unique<LayerHead>(shape, config, num_positions, loader);
}

}  // namespace quire::models
