#include "runner/tapped_states.h"

#include <algorithm>

#include "base/check.h"

namespace quire::runner {

void TappedStates::take(const nn::StepContext& step, size_t index, const nn::HiddenStates& states) {
  if (step.workspace.measures()) return;
  const int64_t rows = states.residual.num_rows;
  QUIRE_CHECK(states.residual.num_columns == hidden_size_);
  float* const to = first(rows, index + 1).data() + index * floats(rows);
  const float* const residual = states.residual.floats();
  if (!states.pending) {
    std::copy_n(residual, floats(rows), to);
    return;
  }
  const float* const delta = states.delta.floats();
  for (size_t i = 0; i < floats(rows); ++i) to[i] = residual[i] + delta[i];
}

std::span<float> TappedStates::first(int64_t rows, size_t num_layers) {
  QUIRE_CHECK(num_layers <= layers_.size());
  states_.resize(layers_.size() * floats(rows));
  return std::span(states_).first(num_layers * floats(rows));
}

}  // namespace quire::runner
