// The executor of one process: a checkpoint, a backend, one worker, called directly.
#pragma once

#include <memory>

#include "ops/backend.h"
#include "runner/executor.h"
#include "runner/rank_group.h"
#include "types/engine_config.h"

namespace quire::runner {

// Opens config.model, plans its memory, loads it onto the backend and takes the memory. Prints nothing.
// Errors: those of the checkpoint and of plan_model().
// ranks: those that have the other parts (config.rank of config.num_ranks()), which each do the same; they agree on the
// number of blocks, the least of all. Their communicators must outlive the executor. Errors besides: invalid_argument
// where the ranks do not have the same model; the communicators'.
Result<std::unique_ptr<Executor>> make_local_executor(const EngineConfig& config, std::unique_ptr<ops::Backend> backend,
                                                      RankGroup ranks = {});

}  // namespace quire::runner
