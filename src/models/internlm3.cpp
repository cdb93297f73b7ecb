#include "models/internlm3.h"

#include "models/config_reader.h"

namespace quire::models {

Result<ModelConfig> read_internlm3_config(const boost::json::object& config, const boost::json::object& generation) {
  static constexpr KeyName kNames[] = {{"qkv_bias", "attention_bias"}, {"bias", "mlp_bias"}};
  const boost::json::object usual = with_usual_keys(config, kNames);
  QUIRE_ASSIGN_OR_RETURN(
      ModelConfig out,
      read_decoder_config(usual, generation,
                          {.num_kv_heads = 2,
                           .head_dim = ConfigReader(config).mentions("head_dim") ? 0 : 128,  // null: what follows
                           .max_position = 32768,
                           .norm_eps = 1e-5}));
  out.architecture = "InternLM3ForCausalLM";
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, ConfigReader(usual).boolean_or("mlp_bias", false));
  out.attention_output_bias = out.mlp_bias;
  return out;
}

}  // namespace quire::models
