// The executor of workers in processes of their own (docs/distributed.md). Plans and results travel as bytes
// (plan_codec.h) through memory that is shared (worker_segment.h); every worker is sent every plan, and the one that
// samples answers.
//
// A thread watches the workers. Where one has ended or gives no sign of life, the group is ended: status() says which
// and why, collect() gives that, and recover() begins a new one.
#pragma once

#include <memory>

#include "ops/backend.h"
#include "runner/executor.h"
#include "runner/worker_launcher.h"
#include "types/engine_config.h"

namespace quire::runner {

// planner: a backend such as the workers', to read the model's headers with; not kept. Prints nothing. Errors: those of
// the workers, and of make_local_executor().
Result<std::unique_ptr<Executor>> make_multiprocess_executor(const EngineConfig& config,
                                                             std::unique_ptr<WorkerLauncher> launcher,
                                                             ops::Backend& planner);

}  // namespace quire::runner
