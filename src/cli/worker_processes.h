// The processes of a model that is computed in several: this program once more, as `quire worker`.
#pragma once

#include <memory>

#include "runner/worker_launcher.h"

namespace quire::cli {

inline constexpr int kSegmentDescriptor = 3;  // of the shared memory, in the worker

// Errors: unimplemented in a program that is not quire's own, which has no such command.
Result<std::unique_ptr<runner::WorkerLauncher>> make_process_launcher();

}  // namespace quire::cli
