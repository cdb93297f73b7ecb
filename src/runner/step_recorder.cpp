#include "runner/step_recorder.h"

#include <utility>

#include "base/log.h"

namespace quire::runner {

float* StepRecorder::replay(const DecodeShape& shape, const void* numbers) {
  if (numbers != numbers_) {
    backend_.synchronise();  // the last replay may not be done
    passes_.clear();
    numbers_ = numbers;
    return nullptr;
  }
  const auto found = passes_.find(shape);
  if (found == passes_.end()) return nullptr;
  backend_.replay(*found->second.ops);
  return found->second.hidden;
}

void StepRecorder::record(const DecodeShape& shape, const void* numbers, FunctionRef<float*()> forward) {
  QUIRE_CHECK(numbers == numbers_);  // replay() was asked first
  if (full_) return;
  Pass pass;
  auto ops = backend_.record([&] { pass.hidden = forward(); });
  if (!ops.ok()) {
    log_warning("steps of {} sequences are not recorded, nor any that are not yet: {}", shape.num_sequences,
                ops.status().message());
    full_ = true;
    return;
  }
  pass.ops = std::move(*ops);
  passes_.insert_or_assign(shape, std::move(pass));
}

}  // namespace quire::runner
