#include "cli/backend.h"

#include <vector>

#include "base/log.h"
#include "base/thread_pool.h"
#include "ops/cpu/cpu_backend.h"
#include "runner/local_executor.h"
#ifdef QUIRE_SERIALISES_STEPS
#include "runner/serialising_executor.h"
#endif
#ifdef QUIRE_HAS_CUDA
#include "ops/cuda/cuda_backend.h"
#endif

namespace quire::cli {

namespace {

Result<std::vector<int>> cores_of(const EngineConfig& config) {
  auto cores = parse_core_list(config.cpu_affinity);
  if (!cores.ok()) return cores.status().with_prefix("cpu_affinity: ");
  return cores;
}

Result<std::unique_ptr<ops::Backend>> make_cpu(const EngineConfig& config) {
  QUIRE_RETURN_IF_ERROR(validate(config, DeviceChoice::Kind::kCpu));
  QUIRE_ASSIGN_OR_RETURN(std::vector<int> cores, cores_of(config));
  return ops::make_cpu_backend({.threads = config.threads,
                                .cores = std::move(cores),
                                .isa = config.isa,
                                .activation_dtype = config.activation_dtype});
}

int num_cards() {
#ifdef QUIRE_HAS_CUDA
  return ops::cuda_device_count();
#else
  return 0;
#endif
}

Result<std::unique_ptr<ops::Backend>> make_cuda(const EngineConfig& config, [[maybe_unused]] int card) {
  QUIRE_RETURN_IF_ERROR(validate(config, DeviceChoice::Kind::kCuda));
#ifdef QUIRE_HAS_CUDA
  QUIRE_ASSIGN_OR_RETURN(std::vector<int> cores, cores_of(config));
  return ops::make_cuda_backend({.device = card,
                                 .host_threads = config.threads,
                                 .cores = std::move(cores),
                                 .batch_invariant = config.batch_invariant,
                                 .rounds_activations = config.activation_dtype == ActivationDType::kAuto,
                                 .attention = config.attention_backend});
#else
  return unavailable(
      "device \"{}\": this quire was built without CUDA. Build it where the CUDA toolkit is installed "
      "(cmake -DQUIRE_CUDA=ON), or choose cpu",
      name(config.device));
#endif
}

}  // namespace

Result<std::unique_ptr<ops::Backend>> make_backend(const EngineConfig& config) {
  QUIRE_RETURN_IF_ERROR(validate(config));
  switch (config.device.kind) {
    case DeviceChoice::Kind::kCpu:
      return make_cpu(config);
    case DeviceChoice::Kind::kCuda:
      return make_cuda(config, config.device.card);
    case DeviceChoice::Kind::kAuto:
      break;
  }
  if (num_cards() == 0) return make_cpu(config);
  auto card = make_cuda(config, 0);
  if (card.ok()) return card;
  log_warning("card 0 is left alone: {}", card.status().message());
  return make_cpu(config);
}

Result<std::unique_ptr<runner::Executor>> make_executor(const EngineConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<ops::Backend> backend, make_backend(config));
  QUIRE_ASSIGN_OR_RETURN(auto executor, runner::make_local_executor(config, std::move(backend)));
#ifdef QUIRE_SERIALISES_STEPS  // the end-to-end tests' second program
  executor = runner::make_serialising_executor(std::move(executor));
#endif
  return executor;
}

Result<std::unique_ptr<engine::Engine>> make_engine(const EngineConfig& config, Drive drive) {
  QUIRE_ASSIGN_OR_RETURN(TextSource text, engine::Engine::open_text(config));
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<runner::Executor> executor, make_executor(config));
  return engine::Engine::create(config, std::move(text), std::move(executor), nullptr, drive);
}

}  // namespace quire::cli
