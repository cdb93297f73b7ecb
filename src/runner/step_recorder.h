// Forward passes of steps that decode, recorded once for each shape: on a card the hundreds of launches of a step
// become one.
#pragma once

#include <map>
#include <memory>

#include "ops/backend.h"
#include "runner/decode_shapes.h"

namespace quire::runner {

class StepRecorder {
 public:
  // The backend must outlive it.
  explicit StepRecorder(ops::Backend& backend) : backend_(backend) {}

  // Replays the pass of this shape, whose numbers lie at `numbers` on the device. Returns its hidden states; nullptr:
  // it is not recorded.
  float* replay(const DecodeShape& shape, const void* numbers);
  // Records what `forward` calls, which has run before with the same shape and numbers; it returns the hidden states.
  // Where there is no memory for it this is said once, and no more is recorded.
  void record(const DecodeShape& shape, const void* numbers, FunctionRef<float*()> forward);

  size_t num_recordings() const { return passes_.size(); }

 private:
  struct Pass {
    std::unique_ptr<ops::OpRecording> ops;
    float* hidden = nullptr;
  };

  ops::Backend& backend_;
  const void* numbers_ = nullptr;  // of all passes
  std::map<DecodeShape, Pass> passes_;
  bool full_ = false;
};

}  // namespace quire::runner
