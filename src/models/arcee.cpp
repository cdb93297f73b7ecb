#include "models/arcee.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "models/plain_mlp.h"

namespace quire::models {

Result<ModelConfig> read_arcee_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(
      ModelConfig out,
      read_decoder_config(config, generation, {.max_position = 4096, .norm_eps = 1e-5, .activation = "relu2"}));
  out.architecture = "ArceeForCausalLM";
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, ConfigReader(config).boolean_or("mlp_bias", false));
  return out;
}

Result<ModelConfig> read_arcee_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out,
                         read_gguf_decoder(reader, {.activation = Activation::kRelu2, .interleaved = true}));
  out.architecture = "ArceeForCausalLM";
  out.mlp_bias = reader.has_tensor_that_ends_with(".mlp.up_proj.bias");
  return out;
}

Result<std::unique_ptr<Model>> build_arcee(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.feed_forward = up_and_down}, config, num_positions, loader);
}

}  // namespace quire::models
