// Steps that pass through bytes on their way to the worker and back, as between processes.
#pragma once

#include <memory>

#include "runner/executor.h"

namespace quire::runner {

// The same executor, but that it sees of plans and constraints only what plan_codec.h writes of them, and its steps'
// results come back as that reads them: the proof that nothing else is shared.
std::unique_ptr<Executor> make_serialising_executor(std::unique_ptr<Executor> executor);

}  // namespace quire::runner
