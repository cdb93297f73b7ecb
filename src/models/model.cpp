#include "models/model.h"

#include <span>

#include "base/check.h"
#include "nn/hidden_taps.h"

namespace quire::models {

ops::View Model::forward(const nn::StepContext& step) const {
  nn::HiddenStates states(step, config().hidden_size);
  embed(step, states);
  const int32_t end = config().num_layers;
  const std::span<const int32_t> layers = step.taps == nullptr ? std::span<const int32_t>() : step.taps->layers();
  int32_t begin = 0;
  size_t next = 0;
  for (; next < layers.size() && layers[next] <= end; begin = layers[next++]) {
    if (layers[next] > begin) run_layers(step, begin, layers[next], states);
    step.taps->take(step, next, states);
  }
  run_layers(step, begin, end, states);
  const ops::View out = finish(step, states);
  if (next < layers.size()) {
    nn::HiddenStates finished = states;
    finished.residual = out;
    finished.pending = false;
    step.taps->take(step, next, finished);
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
