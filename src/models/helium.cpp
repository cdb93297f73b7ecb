#include "models/helium.h"

#include "models/config_reader.h"

namespace quire::models {

Result<ModelConfig> read_helium_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(
      ModelConfig out,
      read_decoder_config(
          config, generation,
          {.num_kv_heads = 20, .head_dim = 128, .max_position = 4096, .norm_eps = 1e-8, .rope_theta = 1e5}));
  out.architecture = "HeliumForCausalLM";
  out.attention_output_bias = false;
  out.rope.interleaved = true;
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, ConfigReader(config).boolean_or("mlp_bias", false));
  // What heads give is as wide as the stream in the reference.
  QUIRE_RETURN_IF_ERROR(check_even_heads(out));
  return out;
}

}  // namespace quire::models
