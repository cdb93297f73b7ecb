#include "cli/backend.h"

#include "base/thread_pool.h"
#include "ops/cpu/cpu_backend.h"
#include "runner/local_executor.h"

namespace quire::cli {

namespace {

Result<ActivationDType> parse_activation_dtype(std::string_view text) {
  if (text == "auto") return ActivationDType::kAuto;
  if (text == "float32") return ActivationDType::kFloat32;
  if (text == "int8") return ActivationDType::kInt8;
  if (text == "int16") return ActivationDType::kInt16;
  if (text == "bfloat16") return ActivationDType::kBFloat16;
  return invalid_argument("activation_dtype \"{}\" is not known; choose one of: auto, float32, bfloat16, int8, int16",
                          text);
}

}  // namespace

Result<std::unique_ptr<ops::Backend>> make_backend(const EngineConfig& config) {
  ops::CpuBackendOptions options;
  options.threads = config.threads;
  options.isa = config.isa;
  auto cores = parse_core_list(config.cpu_affinity);
  if (!cores.ok()) return cores.status().with_prefix("cpu_affinity: ");
  options.cores = std::move(*cores);
  QUIRE_ASSIGN_OR_RETURN(options.activation_dtype, parse_activation_dtype(config.activation_dtype));
  return ops::make_cpu_backend(options);
}

Result<std::unique_ptr<runner::Executor>> make_executor(const EngineConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<ops::Backend> backend, make_backend(config));
  return runner::make_local_executor(config, std::move(backend));
}

}  // namespace quire::cli
