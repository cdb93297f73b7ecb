#include "models/qwen3_moe.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "models/moe_family.h"

namespace quire::models {

Result<ModelConfig> read_qwen3_moe_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out,
                         read_decoder_config(config, generation, {.num_kv_heads = 4, .max_position = 32768}));
  out.architecture = "Qwen3MoeForCausalLM";
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(const bool use_window, reader.boolean_or("use_sliding_window", false));
  if (use_window) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config, 4096));
    if (window) out.layer_windows.assign(static_cast<size_t>(out.num_layers), *window);
  }
  QUIRE_ASSIGN_OR_RETURN(
      out.moe,
      read_moe(config, out,
               {.num_experts = 128, .experts_per_token = 8, .size_key = "moe_intermediate_size", .size = 768}));
  QUIRE_ASSIGN_OR_RETURN(out.moe.normalise, reader.boolean_or("norm_topk_prob", false));
  QUIRE_RETURN_IF_ERROR(read_qwen_sparse_layers(config, out));
  return out;
}

Result<ModelConfig> read_qwen3_moe_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader));
  out.architecture = "Qwen3MoeForCausalLM";
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_gguf_moe(reader, out, "expert_feed_forward_length"));
  out.moe.normalise = true;  // as of every file: the metadata does not say it
  return out;
}

Result<std::unique_ptr<Model>> build_qwen3_moe(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.qk_norm = nn::QkNorm::kHead, .feed_forward = sparse_or_dense}, config, num_positions, loader);
}

}  // namespace quire::models
