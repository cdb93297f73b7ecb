#include "runner/worker_messages.h"

#include "runner/wire_format.h"

namespace quire::runner {
namespace wire {

template <>
inline constexpr Runner kLast<Runner> = Runner::kPooling;
template <>
inline constexpr Convert kLast<Convert> = Convert::kClassify;
template <>
inline constexpr PoolingType kLast<PoolingType> = PoolingType::kWeightedMean;
template <>
inline constexpr LoadFormat kLast<LoadFormat> = LoadFormat::kDummy;
template <>
inline constexpr WeightDType kLast<WeightDType> = WeightDType::kBFloat16;
template <>
inline constexpr Quantization kLast<Quantization> = Quantization::kQuark;
template <>
inline constexpr ActivationDType kLast<ActivationDType> = ActivationDType::kInt16;
template <>
inline constexpr KvCacheDType kLast<KvCacheDType> = KvCacheDType::kInt8;
template <>
inline constexpr SpeculativeMethod kLast<SpeculativeMethod> = SpeculativeMethod::kDflash;
template <>
inline constexpr AcceptanceMethod kLast<AcceptanceMethod> = AcceptanceMethod::kTypical;
template <>
inline constexpr DeviceChoice::Kind kLast<DeviceChoice::Kind> = DeviceChoice::Kind::kCuda;
template <>
inline constexpr AttentionBackend kLast<AttentionBackend> = AttentionBackend::kFa3;
template <>
inline constexpr LoraDType kLast<LoraDType> = LoraDType::kBFloat16;
template <>
inline constexpr AdapterOrder::Kind kLast<AdapterOrder::Kind> = AdapterOrder::Kind::kDrop;
template <>
inline constexpr Isa kLast<Isa> = Isa::kAvx512Bf16;

template <typename A>
void fields(A& all, typename A::template Of<AcceptanceRule> x) {
  all(x.method, x.posterior_threshold, x.posterior_alpha);
}
template <typename A>
void fields(A& all, typename A::template Of<DeviceChoice> x) {
  all(x.kind, x.card);
}
template <typename A>
void fields(A& all, typename A::template Of<EngineConfig> x) {
  all(x.model, x.tokenizer, x.skip_tokenizer_init, x.runner, x.convert, x.pooling_type, x.normalize, x.matryoshka);
  all(x.load_format, x.dtype, x.quantization, x.activation_dtype, x.kv_cache_dtype, x.max_model_len, x.block_size,
      x.kv_cache_memory_bytes, x.memory_utilization, x.num_gpu_blocks_override);
  all(x.swap_space, x.swap_file, x.max_num_seqs, x.max_num_batched_tokens, x.watermark, x.num_scheduler_steps,
      x.async_scheduling, x.seed);
  all(x.threads, x.isa, x.cpu_affinity, x.tensor_parallel_size, x.enable_expert_parallel, x.pipeline_parallel_size,
      x.data_parallel_size, x.numa_bind, x.rank, x.state_layers);
  all(x.device, x.enable_chunked_prefill, x.batch_invariant, x.attention_backend, x.enforce_eager,
      x.disable_custom_all_reduce, x.max_cudagraph_capture_size);
  all(x.speculative_config.method, x.speculative_config.num_speculative_tokens, x.speculative_config.acceptance);
  all(x.enable_lora, x.max_loras, x.max_cpu_loras, x.max_lora_rank, x.lora_dtype, x.enable_prompt_adapter,
      x.max_prompt_adapters, x.max_prompt_adapter_token);
}
template <typename A>
void fields(A& all, typename A::template Of<AdapterOrder> x) {
  all(x.kind, x.handle, x.number, x.path, x.revision);
}
template <typename A>
void fields(A& all, typename A::template Of<AdapterReport> x) {
  all(x.handle, x.status, x.bytes, x.most_bytes, x.rank);
}
template <typename A>
void fields(A& all, typename A::template Of<WorkerReport> x) {
  all(x.status, x.description, x.quantization, x.num_blocks, x.num_swap_blocks, x.seconds_per_swapped_block);
  all(x.max_num_batched_tokens, x.weight_bytes, x.workspace_bytes);
}
template <typename A>
void fields(A& all, typename A::template Of<WorkerHello> x) {
  all(x.program, x.host, x.kernels, x.model, x.fingerprint, x.tokenizer, x.settings, x.threads, x.cores);
}

}  // namespace wire

// A worker makes no guesses, whoever does: it computes those of its plans, for which its states have room.
std::string encode_order(const EngineConfig& config) {
  EngineConfig told = config;
  told.speculative_config = {.acceptance = config.speculative_config.acceptance};
  if (const int32_t most = most_state_drafts(config.speculative_config); most > 0) {
    told.speculative_config.method = SpeculativeMethod::kNgram;
    told.speculative_config.num_speculative_tokens = most;
  }
  return wire::encode_fields(wire::Kind::kWorkerOrder, told);
}

Result<EngineConfig> decode_order(std::string_view message) {
  QUIRE_ASSIGN_OR_RETURN(EngineConfig config, wire::decode_fields<EngineConfig>(wire::Kind::kWorkerOrder, message));
  // Nobody has chosen a card for it.
  if (config.device.kind == DeviceChoice::Kind::kAuto) config.device = DeviceChoice::cpu();
  // The process that it comes from has checked all of it; whoever else sends one is told what is wrong with it.
  // The rule for guesses is there whoever guesses.
  const AcceptanceRule acceptance = std::exchange(config.speculative_config.acceptance, {});
  QUIRE_RETURN_IF_ERROR(validate(acceptance));
  QUIRE_RETURN_IF_ERROR(validate(config));
  config.speculative_config.acceptance = acceptance;
  return config;
}

std::string encode(const WorkerReport& report) {
  return wire::encode_fields(wire::Kind::kWorkerReport, report);
}

Result<WorkerReport> decode_report(std::string_view message) {
  return wire::decode_fields<WorkerReport>(wire::Kind::kWorkerReport, message);
}

std::string encode(const AdapterOrder& order) {
  return wire::encode_fields(wire::Kind::kAdapterOrder, order);
}

Result<AdapterOrder> decode_adapter_order(std::string_view message) {
  return wire::decode_fields<AdapterOrder>(wire::Kind::kAdapterOrder, message);
}

std::string encode(const AdapterReport& report) {
  return wire::encode_fields(wire::Kind::kAdapterReport, report);
}

Result<AdapterReport> decode_adapter_report(std::string_view message) {
  return wire::decode_fields<AdapterReport>(wire::Kind::kAdapterReport, message);
}

std::string encode(const WorkerHello& hello) {
  return wire::encode_fields(wire::Kind::kWorkerHello, hello);
}

Result<WorkerHello> decode_hello(std::string_view message) {
  return wire::decode_fields<WorkerHello>(wire::Kind::kWorkerHello, message);
}

}  // namespace quire::runner
