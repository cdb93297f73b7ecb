#include "cli/backend.h"

#include "ops/cpu/cpu_backend.h"
#include "runner/local_executor.h"

namespace quire::cli {

Result<std::unique_ptr<ops::Backend>> make_backend(const EngineConfig& config) {
  return ops::make_cpu_backend({.threads = config.threads, .isa = config.isa});
}

Result<std::unique_ptr<runner::Executor>> make_executor(const EngineConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<ops::Backend> backend, make_backend(config));
  return runner::make_local_executor(config, std::move(backend));
}

}  // namespace quire::cli
