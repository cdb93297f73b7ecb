#include "models/qwen2_moe.h"

#include "models/config_reader.h"
#include "models/gguf_reader.h"
#include "models/moe_family.h"

namespace quire::models {
namespace {

constexpr int64_t kSharedExpertSize = 5632;  // where the configuration does not say

}  // namespace

Result<ModelConfig> read_qwen2_moe_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out,
                         read_decoder_config(config, generation, {.num_kv_heads = 16, .max_position = 32768}));
  out.architecture = "Qwen2MoeForCausalLM";
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(out.attention_bias, reader.boolean_or("qkv_bias", true));
  out.attention_output_bias = false;

  QUIRE_ASSIGN_OR_RETURN(const bool use_window, reader.boolean_or("use_sliding_window", false));
  QUIRE_ASSIGN_OR_RETURN(const int64_t most_layers, reader.integer_or("max_window_layers", 28, 0, 1 << 20));
  if (use_window) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config, 4096));
    const auto has_window = [&](int32_t layer) { return layer % 2 == 0 && layer < most_layers; };
    if (window) QUIRE_RETURN_IF_ERROR(read_layer_windows(config, *window, has_window, out));
  }

  QUIRE_ASSIGN_OR_RETURN(
      out.moe,
      read_moe(config, out,
               {.num_experts = 60, .experts_per_token = 4, .size_key = "moe_intermediate_size", .size = 1408}));
  QUIRE_ASSIGN_OR_RETURN(out.moe.shared_intermediate_size,
                         reader.integer_or("shared_expert_intermediate_size", kSharedExpertSize, 1, 1 << 22));
  out.moe.shared_gate = true;
  QUIRE_ASSIGN_OR_RETURN(out.moe.normalise, reader.boolean_or("norm_topk_prob", false));
  QUIRE_RETURN_IF_ERROR(read_qwen_sparse_layers(config, out));
  return out;
}

Result<ModelConfig> read_qwen2_moe_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader));
  out.architecture = "Qwen2MoeForCausalLM";
  out.attention_output_bias = false;
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_gguf_moe(reader, out, "expert_feed_forward_length"));
  QUIRE_ASSIGN_OR_RETURN(out.moe.shared_intermediate_size,
                         reader.integer_or("expert_shared_feed_forward_length", kSharedExpertSize, 1, 1 << 22));
  out.moe.shared_gate = true;
  return out;
}

}  // namespace quire::models
