// Who else wants the states between layers: heads that go on from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "nn/hidden_states.h"

namespace quire::nn {

class HiddenTaps {
 public:
  virtual ~HiddenTaps() = default;
  // Before which layers, rising, each once; the number of layers: behind the last of them; one more: behind the norm
  // that follows it.
  virtual std::span<const int32_t> layers() const = 0;
  // What stands before layers()[index], of all rows of the step's batch: the residual, and with `pending` the delta
  // that is still to be added. They may be read until this returns.
  virtual void take(const StepContext& step, size_t index, const HiddenStates& states) = 0;
};

}  // namespace quire::nn
