#include "models/llama.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"

namespace quire::models {

Result<ModelConfig> read_llama_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation, {}));
  out.architecture = "LlamaForCausalLM";
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, ConfigReader(config).boolean_or("mlp_bias", false));
  return out;
}

Result<ModelConfig> read_llama_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, {.interleaved = true}));
  out.architecture = "LlamaForCausalLM";
  out.mlp_bias = reader.has_tensor_that_ends_with(".mlp.up_proj.bias");
  return out;
}

Result<std::unique_ptr<Model>> build_llama(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({}, config, num_positions, loader);
}

}  // namespace quire::models
