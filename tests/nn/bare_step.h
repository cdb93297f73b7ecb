// A step with a backend and nothing else, for layers that ask for no more.
#pragma once

#include "nn/step_context.h"

namespace quire::nn {

class BareStep {
 public:
  explicit BareStep(ops::Backend& backend) : context_{.backend = backend, .batch = batch_, .workspace = workspace_} {}
  operator const StepContext&() const { return context_; }

 private:
  Batch batch_;
  Workspace workspace_{nullptr, 0};
  StepContext context_;
};

}  // namespace quire::nn
