// Steps on a thread of their own, so that the engine plans the next one meanwhile.
#pragma once

#include <memory>

#include "runner/executor.h"

namespace quire::runner {

// Runs another executor's steps on a thread, in the order of their submission.
std::unique_ptr<Executor> make_async_executor(std::unique_ptr<Executor> executor);

}  // namespace quire::runner
