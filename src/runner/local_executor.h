// The executor of one process: a checkpoint, a backend, one worker, called directly.
#pragma once

#include <memory>

#include "ops/backend.h"
#include "runner/executor.h"
#include "types/engine_config.h"

namespace quire::runner {

// Opens config.model, plans its memory, loads it onto the backend and takes the memory. Prints nothing.
// Errors: those of the checkpoint and of plan_model().
Result<std::unique_ptr<Executor>> make_local_executor(const EngineConfig& config,
                                                      std::unique_ptr<ops::Backend> backend);

}  // namespace quire::runner
