// Who carries out a step: the engine's view of one or many workers. One process today; several,
// over shared memory or a network, behind the same interface.
#pragma once

#include <string>

#include "base/status.h"
#include "types/memory_plan.h"
#include "types/model_config.h"
#include "types/step_plan.h"
#include "types/text_source.h"

namespace quire::runner {

struct StepTimings {  // seconds of the last step's phases
  double prepare = 0;
  double forward = 0;
  double sample = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;

  virtual const ModelConfig& model() const = 0;
  virtual const MemoryPlan& memory() const = 0;
  virtual const TextSource& text() const = 0;
  virtual const std::string& description() const = 0;  // device and kernels, for people

  // Told by the thread that will run all steps, before the first.
  virtual void bind_thread() {}

  // Runs one step. A fault of one sequence is in its SequenceResult; an error here means that the
  // worker itself failed and the engine cannot go on.
  virtual Result<StepResult> execute(const StepPlan& plan) = 0;
  virtual StepTimings last_timings() const = 0;
};

}  // namespace quire::runner
