#include "models/stablelm.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"

namespace quire::models {

Result<ModelConfig> read_stablelm_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation,
                                                              {.num_kv_heads = 32,
                                                               .max_position = 4096,
                                                               .norm_eps_key = "layer_norm_eps",
                                                               .norm_eps = 1e-5,
                                                               .rotary_share = 0.25,
                                                               .partial_rotary = true}));
  out.architecture = "StableLmForCausalLM";
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(out.attention_bias, reader.boolean_or("use_qkv_bias", false));
  out.attention_output_bias = false;
  QUIRE_ASSIGN_OR_RETURN(out.parallel_blocks, reader.boolean_or("use_parallel_residual", false));
  QUIRE_ASSIGN_OR_RETURN(out.norms_heads, reader.boolean_or("qk_layernorm", false));
  return out;
}

Result<ModelConfig> read_stablelm_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, {.norm_eps_key = "attention.layer_norm_epsilon"}));
  out.architecture = "StableLmForCausalLM";
  out.attention_output_bias = false;
  out.norms_heads = reader.has_tensor_that_ends_with(".self_attn.q_layernorm.weight");
  out.parallel_blocks = !reader.has_tensor_that_ends_with(".post_attention_layernorm.weight");
  return out;
}

Result<std::unique_ptr<Model>> build_stablelm(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  DecoderShape shape{.norm = nn::NormKind::kLayer, .parallel = config.parallel_blocks};
  if (shape.parallel) shape.before_mlp = "";
  if (config.norms_heads) shape.qk_norm = nn::QkNorm::kLayerOfHead;
  shape.query_norm = "q_layernorm";
  shape.key_norm = "k_layernorm";
  return build_decoder(shape, config, num_positions, loader);
}

}  // namespace quire::models
