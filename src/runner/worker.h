// A worker: one rank of a model, in a process of its own, that carries out the plans it is sent.
#pragma once

#include <functional>
#include <memory>

#include "base/status.h"
#include "ops/backend.h"
#include "runner/worker_segment.h"
#include "types/engine_config.h"

namespace quire::runner {

using MakeBackend = std::function<Result<std::unique_ptr<ops::Backend>>(const EngineConfig& config)>;

// Is told by the first message what it is, loads its part, reports, and carries out plans until the group ends; that is
// no error. Errors have been reported to the engine's process where it listens still.
Status run_worker(const WorkerSegment& segment, int rank, const MakeBackend& make_backend);

}  // namespace quire::runner
