// What a user decides about an engine. Names and defaults are vLLM's where vLLM has them. What is chosen by a word is
// typed: types/engine_choices.h has the words.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "types/engine_choices.h"
#include "types/speculative_config.h"

namespace quire {

struct EngineConfig {
  std::string served_model_name;  // labels the metrics
  std::string model;              // .gguf file or Hugging Face directory
  std::string tokenizer;          // directory or tokenizer.json; empty: the model's own
  std::string chat_template;      // file or template text; empty: the model's own
  bool skip_tokenizer_init = false;
  Runner runner = Runner::kAuto;     // what the model is served for
  Convert convert = Convert::kAuto;  // of Runner::kPooling
  // Over what the model's files say of pooling, where they are set.
  std::optional<PoolingType> pooling_type;
  std::optional<bool> normalize;
  std::optional<bool> matryoshka;  // its vectors may be cut to any length

  LoadFormat load_format = LoadFormat::kAuto;
  WeightDType dtype = WeightDType::kAuto;           // of weights stored in 16 and 32 bits
  Quantization quantization = Quantization::kNone;  // of the same, at load
  ActivationDType activation_dtype = ActivationDType::kAuto;
  KvCacheDType kv_cache_dtype = KvCacheDType::kAuto;
  int64_t max_model_len = 0;          // 0: what the model was trained for
  int32_t block_size = 16;            // tokens a KV block
  int64_t kv_cache_memory_bytes = 0;  // 0: from free memory
  // Share of memory. On a CPU: of what the weights leave, for the KV pool; on a card: of what is free, for everything.
  double memory_utilization = 0;        // 0: a half on a CPU, 0.9 on a card
  int64_t num_gpu_blocks_override = 0;  // blocks of the KV pool, whatever memory says; 0: off
  bool enable_prefix_caching = true;
  double swap_space = 0;  // GiB for blocks of preempted sequences; 0: none
  std::string swap_file;  // folder whose file system holds the swap space; empty: host memory
  PreemptionMode preemption_mode = PreemptionMode::kAuto;
  // Blocks of the prefix cache beyond the pool (docs/offload.md).
  double kv_offloading_size = 0;           // GiB of host memory for them; 0: none, with kv_offload_dir 1
  std::string kv_offload_dir;              // folder where they outlive the process; empty: nowhere
  double kv_offload_disk_size = 10;        // GiB of files there
  double kv_offload_disk_bandwidth = 256;  // MiB a second that are written at most; 0: no bound
  int64_t kv_offload_max_age = 0;          // seconds after which files that nobody used go; 0: never
  // Its blocks go to other instances and come from them, through that host memory (docs/transfer.md).
  bool kv_transfer = false;

  int32_t max_num_seqs = 128;
  int32_t max_num_batched_tokens = 0;        // tokens computed in one step; 0: what suits the device
  int32_t long_prefill_token_threshold = 0;  // most prompt tokens of one request a step; 0: no bound of its own
  int32_t max_num_partial_prefills = 1;
  bool enable_chunked_prefill = true;  // false: a prompt runs whole, in one step that has room for it
  SchedulingPolicy scheduling_policy = SchedulingPolicy::kFcfs;
  double priority_ageing_tokens = 100'000;  // tokens of work that a priority level is ahead, at most
  double watermark = 0.01;                  // share of the KV pool that admission leaves free
  int32_t num_scheduler_steps = 1;          // steps planned ahead of their results
  bool async_scheduling = false;            // plan a step while the one before it is computed
  int32_t max_num_queued_reqs = 4096;       // beyond it: resource_exhausted
  int64_t max_num_queued_tokens = 0;        // prompt tokens that wait; 0: no bound
  double request_timeout = 0;               // seconds a request may take when it does not say; 0: no bound
  int32_t max_logprobs = 20;                // -1: the whole vocabulary
  // Host memory that requests may come to hold beside keys and values until their clients have taken the answers:
  // lists, copies of prompts, log-probabilities, beams (engine/request_cost.h); of one, and of all under way.
  int64_t max_request_bytes = 256 << 20;
  int32_t flight_recorder_steps = 1024;  // the last steps kept for inspection; 0: none
  std::string trace_file;                // everything the scheduler is told, for `quire replay`; empty: none
  uint64_t seed = 0;
  SpeculativeConfig speculative_config;  // tokens guessed ahead (docs/speculation.md)

  // Adapters that requests may choose (docs/adapters.md).
  bool enable_lora = false;
  int32_t max_loras = 8;      // different ones in a step
  int32_t max_cpu_loras = 0;  // in memory; 0: max_loras
  int32_t max_lora_rank = 16;
  LoraDType lora_dtype = LoraDType::kAuto;
  bool enable_prompt_adapter = false;      // soft prompts too
  int32_t max_prompt_adapters = 1;         // of them, in a step and in memory
  int32_t max_prompt_adapter_token = 128;  // tokens that one may have
  std::string lora_dir;                    // where adapters are looked for that requests name; empty: nowhere

  DeviceChoice device;
  // On a card, steps are recorded once for each size and run again: not these, and not larger ones.
  bool enforce_eager = false;
  // Cards add small messages up by NCCL too, not out of each other's memory.
  bool disable_custom_all_reduce = false;
  int32_t max_cudagraph_capture_size = 0;                        // tokens; 0: 512
  AttentionBackend attention_backend = AttentionBackend::kAuto;  // on a card
  // On a card: products are summed in one order however many rows they have, so that an answer's bits do not depend on
  // the rest of the batch. On a CPU they never do.
  bool batch_invariant = false;
  int32_t threads = 0;       // 0: one a core this process may use; of several ranks: of each, 0: its share of the cores
  Isa isa = Isa::kAuto;      // of a CPU's kernels
  std::string cpu_affinity;  // cores of the compute threads, "0-3,8"; empty: those this process may use

  // Tells of what comes into the prefix cache and leaves it (Engine::on_kv_events).
  bool enable_kv_cache_events = false;

  // Processes (docs/distributed.md).
  DistributedBackend distributed_executor_backend = DistributedBackend::kAuto;
  int32_t tensor_parallel_size = 1;     // ranks that each have a part of every weight
  bool enable_expert_parallel = false;  // of mixtures a rank has whole experts, in place of a part of each
  int32_t pipeline_parallel_size = 1;   // stages of such ranks that each have some of the layers
  int32_t data_parallel_size = 1;       // engines with all of the model each, behind one front
  int32_t max_restarts = 3;             // of the workers, in restart_window; then the engine fails
  double restart_window = 300;          // seconds
  // Workers take no memory but that of their cores' NUMA nodes; else they prefer it.
  bool numa_bind = false;
  int32_t rank = 0;  // which of the ranks this process is, stage by stage: set by whoever starts it
  // Before which layers ranks take the model's states, for a head in the engine's process (nn::HiddenTaps::layers()):
  // set by the same.
  std::vector<int32_t> state_layers;

  bool offloads_kv() const { return kv_offloading_size > 0 || !kv_offload_dir.empty(); }
  int32_t num_ranks() const { return tensor_parallel_size * pipeline_parallel_size; }
  // Of one engine, planned and not yet committed.
  int32_t max_plans_in_flight() const {
    if (pipeline_parallel_size > 1) return pipeline_parallel_size;  // one a stage
    return std::max(num_scheduler_steps, async_scheduling ? 2 : 1);
  }
};

// Whether the model is computed in processes of its own.
bool has_workers(const EngineConfig& config);
// Whether those are started by somebody else than the engine: MPI, Ray.
bool starts_elsewhere(const EngineConfig& config);

// Whether what was chosen is in range and goes together. Checked by whoever takes a configuration; what depends on the
// model is the model's to check. `device`: what kAuto has become, where that is known.
// Errors: invalid_argument or unimplemented, with the fields' names, what was found and what to do.
Status validate(const EngineConfig& config, DeviceChoice::Kind device);
inline Status validate(const EngineConfig& config) {
  return validate(config, config.device.kind);
}

}  // namespace quire
