#include "types/engine_config.h"

namespace quire {
namespace {

Status check_memory(const EngineConfig& config) {
  if (config.block_size < 1 || config.block_size > 1024) {
    return invalid_argument("block_size is {}, expected 1 to 1024", config.block_size);
  }
  if (config.num_gpu_blocks_override < 0) {
    return invalid_argument("num_gpu_blocks_override is {}, expected at least 0", config.num_gpu_blocks_override);
  }
  if (!(config.swap_space >= 0 && config.swap_space < 1 << 20)) {
    return invalid_argument("swap_space is {} GiB, expected at least 0", config.swap_space);
  }
  if (config.kv_cache_memory_bytes < 0) {
    return invalid_argument("kv_cache_memory_bytes is {}, expected at least 0", config.kv_cache_memory_bytes);
  }
  if (!(config.memory_utilization >= 0 && config.memory_utilization <= 1)) {
    return invalid_argument("memory utilization is {}, expected 0 (the device's own default) to 1",
                            config.memory_utilization);
  }
  if (config.max_cudagraph_capture_size < 0) {
    return invalid_argument("max_cudagraph_capture_size is {}, expected at least 0", config.max_cudagraph_capture_size);
  }
  return {};
}

Status check_offloading(const EngineConfig& config) {
  const auto is_size = [](double gib) { return gib >= 0 && gib < 1 << 20; };
  if (!is_size(config.kv_offloading_size)) {
    return invalid_argument("kv_offloading_size is {} GiB, expected at least 0", config.kv_offloading_size);
  }
  const EngineConfig plain;
  if (config.kv_offload_dir.empty()) {
    const char* given = config.kv_offload_disk_size != plain.kv_offload_disk_size ? "kv_offload_disk_size"
                        : config.kv_offload_disk_bandwidth != plain.kv_offload_disk_bandwidth
                            ? "kv_offload_disk_bandwidth"
                        : config.kv_offload_max_age != plain.kv_offload_max_age ? "kv_offload_max_age"
                                                                                : nullptr;
    if (given != nullptr) return invalid_argument("{} is of files, and there are none: set kv_offload_dir", given);
  }
  if (!is_size(config.kv_offload_disk_size) || config.kv_offload_disk_size == 0) {
    return invalid_argument("kv_offload_disk_size is {} GiB, expected more than 0", config.kv_offload_disk_size);
  }
  if (!(config.kv_offload_disk_bandwidth >= 0)) {
    return invalid_argument("kv_offload_disk_bandwidth is {} MiB/s, expected at least 0",
                            config.kv_offload_disk_bandwidth);
  }
  if (config.kv_offload_max_age < 0) {
    return invalid_argument("kv_offload_max_age is {} s, expected at least 0", config.kv_offload_max_age);
  }
  if (config.kv_transfer && !config.offloads_kv()) {
    return invalid_argument(
        "kv_transfer_config: blocks go to other instances by way of host memory, and there is none for them: set "
        "kv_offloading_size");
  }
  if (!config.offloads_kv()) return {};
  if (!config.enable_prefix_caching) {
    return invalid_argument(
        "{} keeps blocks of the prefix cache, which is off: set enable_prefix_caching, or leave it out",
        config.kv_offload_dir.empty() ? "kv_offloading_size" : "kv_offload_dir");
  }
  if (!config.trace_file.empty()) {
    return unimplemented(
        "trace_file does not tell of blocks beyond the pool yet: leave out kv_offloading_size and kv_offload_dir");
  }
  return {};
}

Status check_scheduling(const EngineConfig& config) {
  if (config.max_num_seqs < 1) return invalid_argument("max_num_seqs is {}, expected at least 1", config.max_num_seqs);
  if (config.max_num_batched_tokens < 0) {
    return invalid_argument("max_num_batched_tokens is {}, expected at least 1, or 0 for what suits the device",
                            config.max_num_batched_tokens);
  }
  if (!(config.priority_ageing_tokens > 0 && config.priority_ageing_tokens < 1e15)) {
    return invalid_argument("priority_ageing_tokens is {}, expected more than 0", config.priority_ageing_tokens);
  }
  if (config.num_scheduler_steps < 1 || config.num_scheduler_steps > 64) {
    return invalid_argument("num_scheduler_steps is {}, expected 1 to 64", config.num_scheduler_steps);
  }
  if (config.num_scheduler_steps > 1 && config.pipeline_parallel_size > 1) {
    return invalid_argument(
        "num_scheduler_steps is {} with pipeline_parallel_size {}: a pipeline has a step for each of its stages under "
        "way; leave out one of them",
        config.num_scheduler_steps, config.pipeline_parallel_size);
  }
  if (config.max_num_partial_prefills < 1) {
    return invalid_argument("max_num_partial_prefills is {}, expected at least 1", config.max_num_partial_prefills);
  }
  if (config.flight_recorder_steps < 0) {
    return invalid_argument("flight_recorder_steps is {}, expected at least 0", config.flight_recorder_steps);
  }
  return {};
}

// What is said of guesses while nothing guesses.
Status check_speculation(const SpeculativeConfig& config) {
  if (config.method != SpeculativeMethod::kNone) return {};
  const char* given = config.num_speculative_tokens != 0      ? "num_speculative_tokens"
                      : config.disable_by_batch_size != 0     ? "disable_by_batch_size"
                      : config.acceptance != AcceptanceRule() ? "acceptance_method"
                                                              : nullptr;
  if (given == nullptr) return {};
  return invalid_argument("speculative_config: {} is given, but no method: name one (ngram, suffix, draft_model, ...)",
                          given);
}

Status check_adapters(const EngineConfig& config) {
  constexpr int32_t kMostAdapters = 1 << 16;
  constexpr int32_t kMostRank = 4096;
  if (!config.enable_lora) {
    const EngineConfig plain;
    const char* given = config.max_loras != plain.max_loras                         ? "max_loras"
                        : config.max_cpu_loras != plain.max_cpu_loras               ? "max_cpu_loras"
                        : config.max_lora_rank != plain.max_lora_rank               ? "max_lora_rank"
                        : config.lora_dtype != plain.lora_dtype                     ? "lora_dtype"
                        : !config.lora_dir.empty() && !config.enable_prompt_adapter ? "lora_dir"
                                                                                    : nullptr;
    if (given != nullptr) return invalid_argument("{} is of adapters, which are off: set enable_lora", given);
  }
  if (!config.enable_prompt_adapter) {
    const EngineConfig plain;
    const char* given = config.max_prompt_adapters != plain.max_prompt_adapters             ? "max_prompt_adapters"
                        : config.max_prompt_adapter_token != plain.max_prompt_adapter_token ? "max_prompt_adapter_token"
                                                                                            : nullptr;
    if (given != nullptr)
      return invalid_argument("{} is of soft prompts, which are off: set enable_prompt_adapter", given);
  }
  if (!config.enable_lora && !config.enable_prompt_adapter) return {};
  if (config.max_prompt_adapters < 1 || config.max_prompt_adapters > kMostAdapters) {
    return invalid_argument("max_prompt_adapters is {}, expected 1 to {}", config.max_prompt_adapters, kMostAdapters);
  }
  if (config.max_prompt_adapter_token < 1 || config.max_prompt_adapter_token > 1 << 20) {
    return invalid_argument("max_prompt_adapter_token is {}, expected 1 to {}", config.max_prompt_adapter_token,
                            1 << 20);
  }
  if (config.max_loras < 1 || config.max_loras > kMostAdapters) {
    return invalid_argument("max_loras is {}, expected 1 to {}", config.max_loras, kMostAdapters);
  }
  if (config.max_cpu_loras != 0 && (config.max_cpu_loras < config.max_loras || config.max_cpu_loras > kMostAdapters)) {
    return invalid_argument("max_cpu_loras is {}, expected 0 (as many as max_loras) or {} (max_loras) to {}",
                            config.max_cpu_loras, config.max_loras, kMostAdapters);
  }
  if (config.max_lora_rank < 1 || config.max_lora_rank > kMostRank) {
    return invalid_argument("max_lora_rank is {}, expected 1 to {}", config.max_lora_rank, kMostRank);
  }
  return {};
}

// Everything that is refused because of something else that was chosen.
Status check_combinations(const EngineConfig& config, DeviceChoice::Kind device) {
  const bool on_cpu = device == DeviceChoice::Kind::kCpu;
  const bool on_card = device == DeviceChoice::Kind::kCuda;
  const AttentionBackend attention = config.attention_backend;
  // Kernels that only a card has.
  if (attention == AttentionBackend::kFlashInfer || attention == AttentionBackend::kFa3) {
    if (config.kv_cache_dtype == KvCacheDType::kFloat32) {
      return invalid_argument(
          "attention_backend \"{}\" reads no caches of float32; with kv_cache_dtype \"float32\" choose native",
          name(attention));
    }
    if (on_cpu) {
      return invalid_argument("attention_backend \"{}\" is for --device cuda; on a CPU choose native", name(attention));
    }
    if (config.batch_invariant) {
      return invalid_argument(
          "attention_backend \"{}\" sums in an order that depends on the rest of the batch, which batch_invariant "
          "rules "
          "out: leave out one of them",
          name(attention));
    }
  }
  // What chooses among the CPU's kernels would have no effect.
  if (on_card && config.isa != Isa::kAuto) return invalid_argument("isa \"{}\" is for --device cpu", name(config.isa));
  const ActivationDType activations = config.activation_dtype;
  if (on_card && activations != ActivationDType::kAuto && activations != ActivationDType::kFloat32) {
    return unimplemented("activation_dtype \"{}\" on a card: supported there: auto, float32", name(activations));
  }
  if (drafts_with_weights(config.speculative_config)) {
    if (config.async_scheduling) {
      return invalid_argument(
          "speculative_config: a model that drafts computes between the steps of the other, which async_scheduling "
          "plans "
          "while they are computed: leave out one of them");
    }
  }
  if (!config.swap_file.empty() && config.swap_space <= 0) {
    return invalid_argument("swap_file is set, and swap_space is 0 GiB: say how much may be swapped there");
  }
  if (config.preemption_mode == PreemptionMode::kSwap && config.swap_space <= 0) {
    return invalid_argument("preemption_mode swap needs a swap_space of more than 0 GiB");
  }
  if (config.runner == Runner::kGenerate && config.convert != Convert::kAuto && config.convert != Convert::kNone) {
    return invalid_argument("convert \"{}\" makes no model that generates: choose runner \"pooling\", or leave it out",
                            name(config.convert));
  }
  const bool overrides_pooling = config.pooling_type || config.normalize || config.matryoshka;
  if (config.runner == Runner::kGenerate && overrides_pooling) {
    return invalid_argument("pooler_config is for runner \"pooling\"; a model that generates pools nothing");
  }
  if (!config.enable_chunked_prefill && config.max_num_partial_prefills > 1) {
    return invalid_argument("max_num_partial_prefills is {}, but without chunked prefill there are no partial ones",
                            config.max_num_partial_prefills);
  }
  return {};
}

// What processes of one host can do that have a card each.
Status check_workers_on_cards(const EngineConfig& config) {
  if (starts_elsewhere(config)) {
    return unimplemented(
        "distributed_executor_backend \"{}\" on cards: its processes compute on a CPU alone yet: choose --device cpu, "
        "or mp for the cards of one host",
        name(config.distributed_executor_backend));
  }
  return {};
}

// Processes that a model is computed in.
Status check_workers(const EngineConfig& config, DeviceChoice::Kind device) {
  constexpr int32_t kMostRanks = 64;
  if (config.tensor_parallel_size < 1 || config.tensor_parallel_size > kMostRanks) {
    return invalid_argument("tensor_parallel_size is {}, expected 1 to {}", config.tensor_parallel_size, kMostRanks);
  }
  if (config.pipeline_parallel_size < 1 || config.pipeline_parallel_size > kMostRanks / config.tensor_parallel_size) {
    return invalid_argument(
        "pipeline_parallel_size is {} with tensor_parallel_size {}, expected at least 1, and at most {} "
        "processes",
        config.pipeline_parallel_size, config.tensor_parallel_size, kMostRanks);
  }
  if (config.data_parallel_size < 1 || config.data_parallel_size > kMostRanks) {
    return invalid_argument("data_parallel_size is {}, expected 1 to {}", config.data_parallel_size, kMostRanks);
  }
  if (config.data_parallel_size > 1) {
    const char* given = !config.trace_file.empty()      ? "trace_file"
                        : !config.swap_file.empty()     ? "swap_file"
                        : config.offloads_kv()          ? "kv_offloading_size, kv_offload_dir"
                        : config.enable_kv_cache_events ? "enable_kv_cache_events"
                                                        : nullptr;
    if (given != nullptr)
      return unimplemented("{} with data_parallel_size {}: leave out one of them", given, config.data_parallel_size);
    if (device == DeviceChoice::Kind::kCuda) {
      return unimplemented("data_parallel_size {} on a card: one engine a card: start several servers",
                           config.data_parallel_size);
    }
  }
  const int32_t size = config.num_ranks();
  if (config.rank < 0 || config.rank >= size) return invalid_argument("rank {} of {}", config.rank, size);
  if (config.max_restarts < 0) return invalid_argument("max_restarts is {}, expected at least 0", config.max_restarts);
  if (!(config.restart_window > 0)) {
    return invalid_argument("restart_window is {} seconds, expected more than 0", config.restart_window);
  }
  if (size > 1 && config.distributed_executor_backend == DistributedBackend::kUni) {
    return invalid_argument(
        "distributed_executor_backend \"uni\" computes the model in one process, but tensor_parallel_size is {} and "
        "pipeline_parallel_size {}: choose mp",
        config.tensor_parallel_size, config.pipeline_parallel_size);
  }
  if (config.data_parallel_size > 1 && starts_elsewhere(config)) {
    return unimplemented(
        "data_parallel_size {} with distributed_executor_backend \"{}\": its processes compute one model; start a "
        "server for each engine",
        config.data_parallel_size, name(config.distributed_executor_backend));
  }
  if (!has_workers(config)) return {};
  if (device == DeviceChoice::Kind::kCuda) QUIRE_RETURN_IF_ERROR(check_workers_on_cards(config));
  if (config.offloads_kv()) {
    return unimplemented(
        "kv_offloading_size, kv_offload_dir: blocks beyond the pool are not kept beside workers yet: leave out "
        "tensor_parallel_size, pipeline_parallel_size and distributed_executor_backend");
  }
  if (!config.swap_file.empty() && size > 1) {
    return unimplemented("swap_file with {} processes: leave it out, blocks are then swapped to memory", size);
  }
  return {};
}

}  // namespace

bool has_workers(const EngineConfig& config) {
  return config.num_ranks() > 1 || config.distributed_executor_backend == DistributedBackend::kMp ||
         starts_elsewhere(config);
}

bool starts_elsewhere(const EngineConfig& config) {
  return config.distributed_executor_backend == DistributedBackend::kMpi ||
         config.distributed_executor_backend == DistributedBackend::kRay;
}

Status validate(const EngineConfig& config, DeviceChoice::Kind device) {
  QUIRE_RETURN_IF_ERROR(check_memory(config));
  QUIRE_RETURN_IF_ERROR(check_offloading(config));
  QUIRE_RETURN_IF_ERROR(check_workers(config, device));
  QUIRE_RETURN_IF_ERROR(check_scheduling(config));
  QUIRE_RETURN_IF_ERROR(validate(config.speculative_config));
  QUIRE_RETURN_IF_ERROR(check_speculation(config.speculative_config));
  QUIRE_RETURN_IF_ERROR(check_adapters(config));
  return check_combinations(config, device);
}

}  // namespace quire
