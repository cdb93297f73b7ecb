// A step with a backend and at most a batch, for layers that ask for no more.
#pragma once

#include "nn/step_context.h"

namespace quire::nn {

class BareStep {
 public:
  explicit BareStep(ops::Backend& backend, const Batch& batch = {})
      : batch_(batch), context_{.backend = backend, .batch = batch_, .workspace = workspace_} {}
  operator const StepContext&() const { return context_; }

 private:
  Batch batch_;
  float nothing_ = 0;
  Workspace workspace_{&nothing_, 0};
  StepContext context_;
};

}  // namespace quire::nn
