#include "models/model.h"

namespace quire::models {

ops::View Model::forward(const nn::StepContext& step) const {
  nn::HiddenStates states(step, config().hidden_size);
  embed(step, states);
  run_layers(step, 0, config().num_layers, states);
  return finish(step, states);
}

}  // namespace quire::models
