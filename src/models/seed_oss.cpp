#include "models/seed_oss.h"

#include "models/config_reader.h"
#include "models/gguf_reader.h"

namespace quire::models {

Result<ModelConfig> read_seed_oss_config(const boost::json::object& config, const boost::json::object& generation) {
  const ConfigReader reader(config);
  // null says "what follows from the hidden size", silence the default.
  const int64_t head_dim = reader.mentions("head_dim") ? 0 : 128;
  QUIRE_ASSIGN_OR_RETURN(
      ModelConfig out,
      read_decoder_config(config, generation,
                          {.num_kv_heads = 8, .head_dim = head_dim, .max_position = 524288, .attention_bias = true}));
  out.architecture = "SeedOssForCausalLM";
  QUIRE_ASSIGN_OR_RETURN(out.attention_output_bias, reader.boolean_or("attention_out_bias", false));
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, reader.boolean_or("mlp_bias", false));
  return out;
}

Result<ModelConfig> read_seed_oss_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader));
  out.architecture = "SeedOssForCausalLM";
  out.attention_output_bias = reader.has_tensor_that_ends_with(".self_attn.o_proj.bias");
  return out;
}

}  // namespace quire::models
