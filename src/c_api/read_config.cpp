#include "c_api/json_record.h"
#include "c_api/read_json.h"
#include "engine/read_speculative.h"

namespace quire::c_api {
namespace {

Status read_speculation(const boost::json::value& value, EngineConfig& config) {
  if (!value.is_object()) return invalid_argument("expected an object");
  QUIRE_ASSIGN_OR_RETURN(config.speculative_config, engine::read_speculative_config(value.get_object()));
  return {};
}

constexpr Field<EngineConfig> kConfigFields[] = {
    {"served_model_name", read_member<&EngineConfig::served_model_name>},
    {"tokenizer", read_member<&EngineConfig::tokenizer>},
    {"chat_template", read_member<&EngineConfig::chat_template>},
    {"skip_tokenizer_init", read_member<&EngineConfig::skip_tokenizer_init>},
    {"load_format", read_member<&EngineConfig::load_format>},
    {"dtype", read_member<&EngineConfig::dtype>},
    {"quantization", read_member<&EngineConfig::quantization>},
    {"activation_dtype", read_member<&EngineConfig::activation_dtype>},
    {"kv_cache_dtype", read_member<&EngineConfig::kv_cache_dtype>},
    {"max_model_len", read_member<&EngineConfig::max_model_len>},
    {"block_size", read_member<&EngineConfig::block_size>},
    {"kv_cache_memory_bytes", read_member<&EngineConfig::kv_cache_memory_bytes>},
    {"memory_utilization", read_member<&EngineConfig::memory_utilization>},
    {"gpu_memory_utilization", read_member<&EngineConfig::memory_utilization>},
    {"num_gpu_blocks_override", read_member<&EngineConfig::num_gpu_blocks_override>},
    {"enable_prefix_caching", read_member<&EngineConfig::enable_prefix_caching>},
    {"swap_space", read_member<&EngineConfig::swap_space>},
    {"swap_file", read_member<&EngineConfig::swap_file>},
    {"preemption_mode", read_member<&EngineConfig::preemption_mode>},
    {"kv_offloading_size", read_member<&EngineConfig::kv_offloading_size>},
    {"kv_offload_dir", read_member<&EngineConfig::kv_offload_dir>},
    {"kv_offload_disk_size", read_member<&EngineConfig::kv_offload_disk_size>},
    {"kv_offload_disk_bandwidth", read_member<&EngineConfig::kv_offload_disk_bandwidth>},
    {"kv_offload_max_age", read_member<&EngineConfig::kv_offload_max_age>},
    {"max_num_seqs", read_member<&EngineConfig::max_num_seqs>},
    {"max_num_batched_tokens", read_member<&EngineConfig::max_num_batched_tokens>},
    {"long_prefill_token_threshold", read_member<&EngineConfig::long_prefill_token_threshold>},
    {"max_num_partial_prefills", read_member<&EngineConfig::max_num_partial_prefills>},
    {"enable_chunked_prefill", read_member<&EngineConfig::enable_chunked_prefill>},
    {"scheduling_policy", read_member<&EngineConfig::scheduling_policy>},
    {"priority_ageing_tokens", read_member<&EngineConfig::priority_ageing_tokens>},
    {"watermark", read_member<&EngineConfig::watermark>},
    {"num_scheduler_steps", read_member<&EngineConfig::num_scheduler_steps>},
    {"async_scheduling", read_member<&EngineConfig::async_scheduling>},
    {"max_num_queued_reqs", read_member<&EngineConfig::max_num_queued_reqs>},
    {"max_num_queued_tokens", read_member<&EngineConfig::max_num_queued_tokens>},
    {"request_timeout", read_member<&EngineConfig::request_timeout>},
    {"max_logprobs", read_member<&EngineConfig::max_logprobs>},
    {"max_request_bytes", read_member<&EngineConfig::max_request_bytes>},
    {"flight_recorder_steps", read_member<&EngineConfig::flight_recorder_steps>},
    {"trace_file", read_member<&EngineConfig::trace_file>},
    {"seed", read_member<&EngineConfig::seed>},
    {"speculative_config", read_speculation},
    {"enable_lora", read_member<&EngineConfig::enable_lora>},
    {"max_loras", read_member<&EngineConfig::max_loras>},
    {"max_cpu_loras", read_member<&EngineConfig::max_cpu_loras>},
    {"max_lora_rank", read_member<&EngineConfig::max_lora_rank>},
    {"lora_dtype", read_member<&EngineConfig::lora_dtype>},
    {"lora_dir", read_member<&EngineConfig::lora_dir>},
    {"enable_prompt_adapter", read_member<&EngineConfig::enable_prompt_adapter>},
    {"max_prompt_adapters", read_member<&EngineConfig::max_prompt_adapters>},
    {"max_prompt_adapter_token", read_member<&EngineConfig::max_prompt_adapter_token>},
    {"device", read_member<&EngineConfig::device>},
    {"enforce_eager", read_member<&EngineConfig::enforce_eager>},
    {"disable_custom_all_reduce", read_member<&EngineConfig::disable_custom_all_reduce>},
    {"max_cudagraph_capture_size", read_member<&EngineConfig::max_cudagraph_capture_size>},
    {"attention_backend", read_member<&EngineConfig::attention_backend>},
    {"batch_invariant", read_member<&EngineConfig::batch_invariant>},
    {"threads", read_member<&EngineConfig::threads>},
    {"isa", read_member<&EngineConfig::isa>},
    {"cpu_affinity", read_member<&EngineConfig::cpu_affinity>},
    {"distributed_executor_backend", read_member<&EngineConfig::distributed_executor_backend>},
    {"tensor_parallel_size", read_member<&EngineConfig::tensor_parallel_size>},
    {"enable_expert_parallel", read_member<&EngineConfig::enable_expert_parallel>},
    {"pipeline_parallel_size", read_member<&EngineConfig::pipeline_parallel_size>},
    {"data_parallel_size", read_member<&EngineConfig::data_parallel_size>},
    {"max_restarts", read_member<&EngineConfig::max_restarts>},
    {"restart_window", read_member<&EngineConfig::restart_window>},
    {"numa_bind", read_member<&EngineConfig::numa_bind>},
};

}  // namespace

Status read_config(std::string_view text, EngineConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(const boost::json::object object, parse_object(text, "the configuration"));
  return read_record(object, kConfigFields, "engine option", config);
}

}  // namespace quire::c_api
