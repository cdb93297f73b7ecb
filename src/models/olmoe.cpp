#include "models/olmoe.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "models/moe_family.h"
#include "models/olmo.h"

namespace quire::models {

Result<ModelConfig> read_olmoe_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out,
                         read_decoder_config(config, generation, {.max_position = 4096, .norm_eps = 1e-5}));
  out.architecture = "OlmoeForCausalLM";
  const ConfigReader reader(config);
  QUIRE_RETURN_IF_ERROR(read_qkv_limit(config, out));
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_moe(config, out, {.num_experts = 64, .experts_per_token = 8}));
  QUIRE_ASSIGN_OR_RETURN(out.moe.normalise, reader.boolean_or("norm_topk_prob", false));
  return out;
}

Result<ModelConfig> read_olmoe_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader));
  out.architecture = "OlmoeForCausalLM";
  QUIRE_RETURN_IF_ERROR(read_gguf_qkv_limit(checkpoint, out));
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_gguf_moe(reader, out, "feed_forward_length"));
  return out;
}

Result<std::unique_ptr<Model>> build_olmoe(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.qk_norm = nn::QkNorm::kProjection, .feed_forward = sparse_or_dense}, config, num_positions,
                       loader);
}

Result<ModelConfig> read_flex_olmo_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out,
                         read_decoder_config(config, generation, {.max_position = 4096, .rope_theta = 5e5}));
  out.architecture = "FlexOlmoForCausalLM";
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_moe(config, out, {.num_experts = 7, .experts_per_token = 5}));
  QUIRE_ASSIGN_OR_RETURN(out.moe.normalise, ConfigReader(config).boolean_or("norm_topk_prob", false));
  return out;
}

Result<std::unique_ptr<Model>> build_flex_olmo(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.before_attention = "",
                        .after_attention = "post_attention_layernorm",
                        .before_mlp = "",
                        .after_mlp = "post_feedforward_layernorm",
                        .qk_norm = nn::QkNorm::kProjection,
                        .feed_forward = sparse_or_dense},
                       config, num_positions, loader);
}

}  // namespace quire::models
