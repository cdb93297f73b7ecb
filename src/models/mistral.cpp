#include "models/mistral.h"

#include "models/config_reader.h"

namespace quire::models {

Result<ModelConfig> read_mistral_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_llama_config(config, generation));
  out.architecture = "MistralForCausalLM";
  const ConfigReader reader(config);
  if (!reader.has("sliding_window")) return out;
  QUIRE_ASSIGN_OR_RETURN(const int64_t window, reader.integer("sliding_window", 1, int64_t{1} << 30));
  out.layer_windows.assign(static_cast<size_t>(out.num_layers), static_cast<int32_t>(window));
  return out;
}

}  // namespace quire::models
