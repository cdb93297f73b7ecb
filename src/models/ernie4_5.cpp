#include "models/ernie4_5.h"

#include "models/config_reader.h"
#include "models/gguf_reader.h"

namespace quire::models {

Result<ModelConfig> read_ernie4_5_config(const boost::json::object& config, const boost::json::object& generation) {
  const ConfigReader reader(config);
  const int64_t head_dim = reader.mentions("head_dim") ? 0 : 128;  // null: what follows from the hidden size
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation,
                                                              {.num_kv_heads = 2,
                                                               .head_dim = head_dim,
                                                               .max_position = 131072,
                                                               .norm_eps = 1e-5,
                                                               .rope_theta = 5e5,
                                                               .tie_word_embeddings = true}));
  out.architecture = "Ernie4_5ForCausalLM";
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, reader.boolean_or("use_bias", false));
  out.attention_bias = out.attention_output_bias = out.mlp_bias;
  out.rope.interleaved = true;
  return out;
}

Result<ModelConfig> read_ernie4_5_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, {.interleaved = true}));
  out.architecture = "Ernie4_5ForCausalLM";
  out.mlp_bias = reader.has_tensor_that_ends_with(".mlp.up_proj.bias");
  return out;
}

}  // namespace quire::models
