#include "models/mistral.h"

#include "models/config_reader.h"

namespace quire::models {

Result<ModelConfig> read_mistral_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out,
                         read_decoder_config(config, generation, {.num_kv_heads = 8, .max_position = 131072}));
  out.architecture = "MistralForCausalLM";
  out.attention_bias = out.attention_output_bias = false;
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config, 4096));
  if (window) out.layer_windows.assign(static_cast<size_t>(out.num_layers), *window);
  return out;
}

}  // namespace quire::models
