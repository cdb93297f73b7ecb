#include "cli/backend.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/log.h"
#include "base/numa.h"
#include "base/thread_pool.h"
#include "cli/worker_processes.h"
#include "ops/cpu/cpu_backend.h"
#include "runner/drafting_executor.h"
#include "runner/local_executor.h"
#include "runner/memory_planner.h"
#include "runner/model_drafts.h"
#include "runner/multiprocess_executor.h"
#include "runner/network_executor.h"
#ifdef QUIRE_SERIALISES_STEPS
#include "runner/serialising_executor.h"
#endif
#ifdef QUIRE_HAS_CUDA
#include "cli/attention_trial.h"
#include "cli/cuda_libraries.h"
#include "cli/library_environment.h"
#include "ops/cuda/cuda_backend.h"
#endif

namespace quire::cli {

namespace {

Result<std::vector<int>> cores_of(const EngineConfig& config) {
  auto cores = parse_core_list(config.cpu_affinity);
  if (!cores.ok()) return cores.status().with_prefix("cpu_affinity: ");
  return cores;
}

Result<std::unique_ptr<ops::Backend>> make_cpu(const EngineConfig& config,
                                               int spin_microseconds = ops::CpuBackendOptions().spin_microseconds) {
  QUIRE_RETURN_IF_ERROR(validate(config, DeviceChoice::Kind::kCpu));
  QUIRE_ASSIGN_OR_RETURN(std::vector<int> cores, cores_of(config));
  return ops::make_cpu_backend({.threads = config.threads,
                                .cores = std::move(cores),
                                .isa = config.isa,
                                .activation_dtype = config.activation_dtype,
                                .spin_microseconds = spin_microseconds});
}

int num_cards() {
#ifdef QUIRE_HAS_CUDA
  return ops::cuda_device_count();
#else
  return 0;
#endif
}

Result<std::unique_ptr<ops::Backend>> make_cuda(const EngineConfig& config, [[maybe_unused]] int card,
                                                [[maybe_unused]] ops::ProductKernels products) {
  QUIRE_RETURN_IF_ERROR(validate(config, DeviceChoice::Kind::kCuda));
#ifdef QUIRE_HAS_CUDA
  QUIRE_ASSIGN_OR_RETURN(std::vector<int> cores, cores_of(config));
  std::function<Status()> trial;
  if (ops::cuda_device_count() > card) trial = begin_attention_trial(config, card);
  return ops::make_cuda_backend({.device = card,
                                 .host_threads = config.threads,
                                 .cores = std::move(cores),
                                 .batch_invariant = config.batch_invariant,
                                 .rounds_activations = config.activation_dtype == ActivationDType::kAuto,
                                 .products = products,
                                 .attention = config.attention_backend,
                                 .attention_trial = std::move(trial),
                                 .cublas_lt_paths = cublas_lt_paths(library_environment()),
                                 .nccl_paths = nccl_paths(library_environment()),
                                 .peer_sums = !config.disable_custom_all_reduce});
#else
  return unavailable(
      "device \"{}\": this quire was built without CUDA. Build it where the CUDA toolkit is installed "
      "(cmake -DQUIRE_CUDA=ON), or choose cpu",
      name(config.device));
#endif
}

}  // namespace

Result<std::unique_ptr<ops::Backend>> make_backend(const EngineConfig& config, ops::ProductKernels products) {
  QUIRE_RETURN_IF_ERROR(validate(config));
  switch (config.device.kind) {
    case DeviceChoice::Kind::kCpu:
      return make_cpu(config);
    case DeviceChoice::Kind::kCuda:
      return make_cuda(config, config.device.card, products);
    case DeviceChoice::Kind::kAuto:
      break;
  }
  if (num_cards() == 0) return make_cpu(config);
  auto card = make_cuda(config, 0, products);
  if (card.ok()) return card;
  log_warning("card 0 is left alone: {}", card.status().message());
  return make_cpu(config);
}

Result<std::unique_ptr<ops::Backend>> make_rank_backend(const EngineConfig& config) {
  EngineConfig on_cpu = config;
  on_cpu.device = DeviceChoice::cpu();
  return make_backend(on_cpu);
}

namespace {

// Where workers of one host compute: each on a card of its own, from the named one on, or all on the CPU.
Result<DeviceChoice> device_of_workers(const EngineConfig& config) {
  if (config.device.kind == DeviceChoice::Kind::kCpu) return config.device;
  const int cards = num_cards();
  if (config.device.kind == DeviceChoice::Kind::kAuto && cards == 0) return DeviceChoice::cpu();
  if (config.device.kind == DeviceChoice::Kind::kAuto) {
    const Status fits = validate(config, DeviceChoice::Kind::kCuda);
    if (!fits.ok()) {
      log_warning("cards are left alone: {}", fits.message());
      return DeviceChoice::cpu();
    }
  }
  const DeviceChoice first = DeviceChoice::cuda(config.device.card);
  const int wanted = first.card + config.num_ranks();
  if (wanted > cards) {
    return unavailable(
        "tensor_parallel_size {}, pipeline_parallel_size {}: each worker has a card of its own, from {} on, and this "
        "machine has {} that can be used: make them smaller, or choose --device cpu",
        config.tensor_parallel_size, config.pipeline_parallel_size, name(first), cards);
  }
  return first;
}

Result<std::unique_ptr<runner::Executor>> start_workers(const EngineConfig& config, const WorkerSource& workers,
                                                        ops::Backend& planner) {
  if (workers.ranks != nullptr) {
    QUIRE_ASSIGN_OR_RETURN(const runner::NetworkSelf self, runner::this_process());
    return runner::make_network_executor(config, *workers.ranks, self, make_rank_backend, planner);
  }
  QUIRE_ASSIGN_OR_RETURN(auto launcher, make_process_launcher(workers.program));
  return runner::make_multiprocess_executor(config, std::move(launcher), planner);
}

Result<std::unique_ptr<runner::Executor>> make_workers(const EngineConfig& asked, const WorkerSource& workers) {
  EngineConfig config = asked;
  if (workers.ranks != nullptr || starts_elsewhere(config)) {
    QUIRE_RETURN_IF_ERROR(validate(config, config.device.kind));
  } else {
    QUIRE_ASSIGN_OR_RETURN(config.device, device_of_workers(config));
  }
  // Sizes are planned by what every machine has.
  EngineConfig planning = config;
  planning.threads = 1;
  planning.device = DeviceChoice::cpu();
  planning.attention_backend = AttentionBackend::kAuto;
  QUIRE_ASSIGN_OR_RETURN(const auto planner, make_cpu(planning));
  if (workers.ranks == nullptr && starts_elsewhere(config)) {
    return unimplemented(
        "distributed_executor_backend \"{}\" is for quire's commands (quire serve ...); here choose mp",
        name(config.distributed_executor_backend));
  }
  if (!drafts_with_weights(config.speculative_config)) return start_workers(config, workers, *planner);
  // Its threads share the cores of the workers, which want them as soon as there is a plan: they wait awake from one
  // operation to the next, and no longer.
  constexpr int kBetweenOperations = 30;                                  // microseconds
  const bool on_cards = config.device.kind == DeviceChoice::Kind::kCuda;  // the first worker's, which has what is left
  auto own = on_cards ? make_cuda(config, config.device.card, ops::ProductKernels::kByRows)
                      : make_cpu(config, kBetweenOperations);
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<ops::Backend> drafting, std::move(own));
  QUIRE_ASSIGN_OR_RETURN(runner::DraftsBesideWorkers drafts,
                         runner::make_drafts_beside_workers(config, std::move(drafting)));
  if (drafts.store != nullptr) config.state_layers = drafts.store->layers();
  // Its pool is used as texts come; the workers of this host leave it that much of what is free. Ranks of several hosts
  // have one setting, which all of them were started with.
  if (workers.ranks == nullptr && !on_cards) {
    const int64_t pools = config.data_parallel_size * drafts.drafts->pool_bytes();  // of all engines
    const double left = 1 - static_cast<double>(pools) / static_cast<double>(planner->free_memory());
    config.memory_utilization = runner::memory_utilization(config, *planner) * std::max(left, 0.01);
  }
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<runner::Executor> executor, start_workers(config, workers, *planner));
  return runner::make_drafting_executor(std::move(executor), std::move(drafts));
}

}  // namespace

Result<std::unique_ptr<runner::Executor>> make_executor(const EngineConfig& config, const WorkerSource& workers) {
  QUIRE_RETURN_IF_ERROR(validate(config));
  if (has_workers(config)) return make_workers(config, workers);
  if (config.numa_bind) {
    return invalid_argument(
        "numa_bind binds the memory of workers, and there are none: choose distributed_executor_backend mp, or start "
        "quire with numactl");
  }
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<ops::Backend> backend, make_backend(config));
  QUIRE_ASSIGN_OR_RETURN(auto executor, runner::make_local_executor(config, std::move(backend)));
#ifdef QUIRE_SERIALISES_STEPS  // the end-to-end tests' second program
  executor = runner::make_serialising_executor(std::move(executor));
#endif
  return executor;
}

Result<std::vector<std::unique_ptr<runner::Executor>>> make_executors(const EngineConfig& config,
                                                                      const WorkerSource& workers) {
  QUIRE_RETURN_IF_ERROR(validate(config));
  QUIRE_ASSIGN_OR_RETURN(std::vector<int> cores, cores_of(config));
  if (cores.empty()) cores = usable_cores();
  cores = cores_by_node(cores, numa_nodes());
  std::vector<std::unique_ptr<runner::Executor>> executors;
  for (int32_t i = 0; i < config.data_parallel_size; ++i) {
    EngineConfig own = config;
    if (config.data_parallel_size > 1) {
      const std::string part = part_of_cores(cores, i, config.data_parallel_size);
      if (!part.empty()) own.cpu_affinity = part;
      if (part.empty() && own.threads == 0) own.threads = 1;
    }
    QUIRE_ASSIGN_OR_RETURN(auto executor, make_executor(own, workers));
    executors.push_back(std::move(executor));
  }
  return executors;
}

Result<std::unique_ptr<engine::Engine>> make_engine(const EngineConfig& config, Drive drive,
                                                    const WorkerSource& workers) {
  QUIRE_ASSIGN_OR_RETURN(TextSource text, engine::Engine::open_text(config));
  if (config.data_parallel_size > 1) {
    if (drive == Drive::kCaller) {
      return unimplemented(
          "data_parallel_size {} where the caller makes the steps: each engine has a thread of its own",
          config.data_parallel_size);
    }
    QUIRE_ASSIGN_OR_RETURN(auto executors, make_executors(config, workers));
    return engine::Engine::create(config, std::move(text), std::move(executors));
  }
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<runner::Executor> executor, make_executor(config, workers));
  return engine::Engine::create(config, std::move(text), std::move(executor), nullptr, drive);
}

}  // namespace quire::cli
