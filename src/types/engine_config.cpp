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

Status check_scheduling(const EngineConfig& config) {
  if (config.max_num_seqs < 1) return invalid_argument("max_num_seqs is {}, expected at least 1", config.max_num_seqs);
  if (config.max_num_batched_tokens < 1) {
    return invalid_argument("max_num_batched_tokens is {}, expected at least 1", config.max_num_batched_tokens);
  }
  if (!(config.priority_ageing_tokens > 0 && config.priority_ageing_tokens < 1e15)) {
    return invalid_argument("priority_ageing_tokens is {}, expected more than 0", config.priority_ageing_tokens);
  }
  if (config.num_scheduler_steps < 1 || config.num_scheduler_steps > 64) {
    return invalid_argument("num_scheduler_steps is {}, expected 1 to 64", config.num_scheduler_steps);
  }
  if (config.max_num_partial_prefills < 1) {
    return invalid_argument("max_num_partial_prefills is {}, expected at least 1", config.max_num_partial_prefills);
  }
  if (config.flight_recorder_steps < 0) {
    return invalid_argument("flight_recorder_steps is {}, expected at least 0", config.flight_recorder_steps);
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
  if (config.preemption_mode == PreemptionMode::kSwap && config.swap_space <= 0) {
    return invalid_argument("preemption_mode swap needs a swap_space of more than 0 GiB");
  }
  if (!config.enable_chunked_prefill && config.max_num_partial_prefills > 1) {
    return invalid_argument("max_num_partial_prefills is {}, but without chunked prefill there are no partial ones",
                            config.max_num_partial_prefills);
  }
  return {};
}

}  // namespace

Status validate(const EngineConfig& config, DeviceChoice::Kind device) {
  QUIRE_RETURN_IF_ERROR(check_memory(config));
  QUIRE_RETURN_IF_ERROR(check_scheduling(config));
  return check_combinations(config, device);
}

}  // namespace quire
