#include "models/cwm.h"

#include "models/config_reader.h"

namespace quire::models {

Result<ModelConfig> read_cwm_config(const boost::json::object& config, const boost::json::object& generation) {
  constexpr int32_t kCwmPeriod = 4;
  boost::json::object complete = config;
  const ConfigReader reader(config);
  if (!reader.has("rope_parameters") && !reader.has("rope_scaling")) {
    complete["rope_parameters"] = {{"rope_type", "llama3"},   {"rope_theta", 1e6},
                                   {"factor", 16.0},          {"low_freq_factor", 1.0},
                                   {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};
  }
  if (!reader.has("eos_token_id")) complete["eos_token_id"] = {128001, 128008, 128009};
  QUIRE_ASSIGN_OR_RETURN(
      ModelConfig out,
      read_decoder_config(
          complete, generation,
          {.num_kv_heads = 8, .head_dim = 128, .max_position = 131072, .norm_eps = 1e-5, .rope_theta = 1e6}));
  out.architecture = "CwmForCausalLM";
  out.attention_bias = out.attention_output_bias = false;
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, reader.boolean_or("mlp_bias", false));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config, 8192));
  QUIRE_RETURN_IF_ERROR(read_layer_windows(
      config, window.value_or(0), [](int32_t layer) { return layer % kCwmPeriod != 0; }, out));
  return out;
}

}  // namespace quire::models
