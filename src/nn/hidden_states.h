// The states between layers: the residual stream, and what the last block adds to it, which the next norm adds in
// passing. A stage of a pipeline hands both on as they are, so that no bit depends on where a model is cut.
#pragma once

#include <utility>

#include "nn/step_context.h"

namespace quire::nn {

struct HiddenStates {
  // Both [num_tokens, size], in the workspace until that is rewound.
  HiddenStates(const StepContext& step, int64_t size)
      : residual(step.workspace.take(step.batch.num_tokens, size)),
        delta(step.workspace.take(step.batch.num_tokens, size)) {}

  ops::View residual;
  ops::View delta;
  bool pending = false;    // delta is still to be added to the residual
  ops::View layer_inputs;  // [num_tokens, layers * size], what a model gives its layers beside the stream; or none

  // The delta for a norm that adds it; nullptr: it has been added.
  const float* take_delta() { return std::exchange(pending, false) ? delta.floats() : nullptr; }
  // Adds it where no norm does.
  void add_delta(const StepContext& step, float scale = 1.0f) {
    if (!std::exchange(pending, false)) return;
    step(ops::AddArgs{.hidden = residual.floats(),
                      .delta = delta.floats(),
                      .delta_scale = scale,
                      .num_tokens = residual.num_rows,
                      .size = residual.num_columns});
  }
};

}  // namespace quire::nn
