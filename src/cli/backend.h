// The one place that names concrete backends.
#pragma once

#include <memory>

#include "ops/backend.h"
#include "runner/executor.h"
#include "types/engine_config.h"

namespace quire::cli {

// The backend that config asks for (threads, instruction set). Errors: invalid_argument.
Result<std::unique_ptr<ops::Backend>> make_backend(const EngineConfig& config);

// Backend, checkpoint and worker in this process.
Result<std::unique_ptr<runner::Executor>> make_executor(const EngineConfig& config);

}  // namespace quire::cli
