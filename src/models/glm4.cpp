#include "models/glm4.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"

namespace quire::models {
namespace {

void set_glm(bool names_an_end, ModelConfig& out) {
  out.architecture = "Glm4ForCausalLM";
  out.attention_output_bias = false;
  out.rope.interleaved = true;
  if (!out.eos_ids.empty() || names_an_end) return;
  for (const TokenId id : {151329, 151336, 151338}) {
    if (id < out.vocab_size) out.eos_ids.push_back(id);
  }
}

}  // namespace

Result<ModelConfig> read_glm_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation,
                                                              {.num_kv_heads = 2,
                                                               .head_dim = 128,
                                                               .max_position = 131072,
                                                               .norm_eps = 1.5625e-7,
                                                               .rotary_share = 0.5,
                                                               .partial_rotary = true,
                                                               .attention_bias = true}));
  set_glm(ConfigReader(config).has("eos_token_id"), out);
  return out;
}

Result<ModelConfig> read_glm_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader));
  set_glm(reader.metadata().has("tokenizer.ggml.eos_token_id"), out);
  return out;
}

Result<std::unique_ptr<Model>> build_glm(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({}, config, num_positions, loader);
}

Result<std::unique_ptr<Model>> build_glm4(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.after_attention = "post_self_attn_layernorm", .after_mlp = "post_mlp_layernorm"}, config,
                       num_positions, loader);
}

}  // namespace quire::models
