#include "models/nemotron.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "models/plain_mlp.h"

namespace quire::models {

Result<ModelConfig> read_nemotron_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation,
                                                              {.max_position = 4096,
                                                               .norm_eps_key = "norm_eps",
                                                               .norm_eps = 1e-5,
                                                               .rotary_share = 0.5,
                                                               .partial_rotary = true,
                                                               .activation = "relu2"}));
  out.architecture = "NemotronForCausalLM";
  out.norm_weight_offset = 1;
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, ConfigReader(config).boolean_or("mlp_bias", false));
  return out;
}

Result<ModelConfig> read_nemotron_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, {.norm_eps_key = "attention.layer_norm_epsilon",
                                                                     .activation = Activation::kRelu2}));
  out.architecture = "NemotronForCausalLM";  // its converter has added the 1 to the norms
  out.mlp_bias = reader.has_tensor_that_ends_with(".mlp.up_proj.bias");
  return out;
}

Result<std::unique_ptr<Model>> build_nemotron(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.norm = nn::NormKind::kLayer, .feed_forward = up_and_down}, config, num_positions, loader);
}

}  // namespace quire::models
