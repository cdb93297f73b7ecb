// Forward passes, recorded once for each shape: on a card the hundreds of launches of a step that decodes become one,
// those of a mixed step one between each layer's attention and the next's.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "nn/batch.h"
#include "ops/backend.h"
#include "ops/view.h"
#include "runner/step_shapes.h"

namespace quire::runner {

class StepRecorder {
 public:
  // The backend must outlive it.
  explicit StepRecorder(ops::Backend& backend) : backend_(backend) {}

  // Steps are made of the same calls on several ranks, whose communicators wait for each other: record() calls
  // `forward` as often on each, whatever one of them can record.
  void keep_step_with_others() { in_step_ = true; }

  // Replays the pass of this shape for the batch, whose numbers lie at that place (StepNumbers::place()). Returns its
  // hidden states; none: it is not recorded. Passes with adapters of an earlier version are forgotten.
  std::optional<ops::View> replay(const StepShape& shape, const nn::Batch& batch, uint64_t numbers);
  // Records what `forward` calls, which has run before with the same shape, batch and numbers; it returns the hidden
  // states, and may be called twice. Where there is no memory for it this is said once, and no more is recorded; what
  // cannot be recorded for another reason is this shape alone, the first of which is said.
  void record(const StepShape& shape, const nn::Batch& batch, uint64_t numbers, FunctionRef<ops::View()> forward);

  size_t num_recordings() const {
    return static_cast<size_t>(
        std::ranges::count_if(passes_, [](const auto& pass) { return pass.second.ops != nullptr; }));
  }

 private:
  struct Pass {
    std::unique_ptr<ops::OpRecording> ops;  // nullptr: it is computed call by call, and others may have recorded it
    ops::View hidden;
    std::vector<const BlockId*> block_tables;  // on the device, of each group
  };

  void forget_older(int32_t adapters);
  void tell(const Status& refusal, const StepShape& shape);

  ops::Backend& backend_;
  bool in_step_ = false;
  uint64_t numbers_ = 0;  // place of those of all passes
  int32_t adapters_ = 0;  // version of the passes with some
  std::map<StepShape, Pass> passes_;
  bool full_ = false;
  std::set<StepShape> refused_;
};

}  // namespace quire::runner
