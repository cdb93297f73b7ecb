#include "models/model.h"

#include <span>

#include "base/check.h"
#include "nn/hidden_taps.h"

namespace quire::models {

namespace {

std::span<const int32_t> tapped_layers(const nn::StepContext& step) {
  return step.taps == nullptr ? std::span<const int32_t>() : step.taps->layers();
}

}  // namespace

ops::View Model::forward(const nn::StepContext& step) const {
  nn::HiddenStates states(step, config().hidden_size);
  embed(step, states);
  run_tapped_layers(step, 0, config().num_layers, states);
  return finish_tapped(step, states);
}

void Model::run_tapped_layers(const nn::StepContext& step, int32_t begin, int32_t end, nn::HiddenStates& states) const {
  const std::span<const int32_t> layers = tapped_layers(step);
  const bool is_last = end == config().num_layers;
  for (size_t index = 0; index < layers.size(); ++index) {
    const int32_t layer = layers[index];
    if (layer < begin || layer > end || (layer == end && !is_last)) continue;
    if (layer > begin) run_layers(step, begin, layer, states);
    step.taps->take(step, index, states);
    begin = layer;
  }
  if (begin < end) run_layers(step, begin, end, states);
}

ops::View Model::finish_tapped(const nn::StepContext& step, nn::HiddenStates& states) const {
  const ops::View out = finish(step, states);
  const std::span<const int32_t> layers = tapped_layers(step);
  if (!layers.empty() && layers.back() > config().num_layers) {
    nn::HiddenStates finished = states;
    finished.residual = out;
    finished.pending = false;
    step.taps->take(step, layers.size() - 1, finished);
  }
  return out;
}

std::optional<nn::Range> Model::caches_of(const nn::Range& layers) const {
  const bool one_each = static_cast<int32_t>(kv_layers(DType::kF32).size()) == config().num_layers;
  return one_each ? std::optional(layers) : std::nullopt;
}

void Model::logits(const nn::StepContext& /*step*/, const ops::ConstView& /*hidden*/, const ops::View& /*out*/) const {
  QUIRE_CHECK_MSG(false, "a model without a head over its vocabulary is asked for logits");
}

void Model::scores(const nn::StepContext& /*step*/, const ops::View& /*pooled*/, const ops::View& /*out*/) const {
  QUIRE_CHECK_MSG(false, "a model without a classifying head is asked for scores");
}

}  // namespace quire::models
