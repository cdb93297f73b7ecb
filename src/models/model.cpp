#include "models/model.h"

#include "base/check.h"
#include "nn/hidden_taps.h"

namespace quire::models {

ops::View Model::forward(const nn::StepContext& step) const {
  nn::HiddenStates states(step, config().hidden_size);
  embed(step, states);
  int32_t begin = 0;
  if (step.taps != nullptr) {
    const std::span<const int32_t> layers = step.taps->layers();
    for (size_t i = 0; i < layers.size(); begin = layers[i++]) {
      if (layers[i] > begin) run_layers(step, begin, layers[i], states);
      step.taps->take(step, i, states);
    }
  }
  run_layers(step, begin, config().num_layers, states);
  return finish(step, states);
}

void Model::logits(const nn::StepContext& /*step*/, const ops::ConstView& /*hidden*/, const ops::View& /*out*/) const {
  QUIRE_CHECK_MSG(false, "a model without a head over its vocabulary is asked for logits");
}

void Model::scores(const nn::StepContext& /*step*/, const ops::View& /*pooled*/, const ops::View& /*out*/) const {
  QUIRE_CHECK_MSG(false, "a model without a classifying head is asked for scores");
}

}  // namespace quire::models
