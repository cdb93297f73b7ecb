#include "models/eagle.h"

#include <string>
#include <string_view>

#include "models/config_reader.h"
#include "models/layer_head.h"

namespace quire::models {

Result<ModelConfig> read_eagle_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation, {}));
  out.architecture = "EagleLlamaForCausalLM";
  if (out.num_layers != 1) {
    return unimplemented("num_hidden_layers is {}: heads of one layer are what there is", out.num_layers);
  }
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, ConfigReader(config).boolean_or("mlp_bias", false));
  return out;
}

Result<std::unique_ptr<Model>> build_eagle(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  ModelConfig of_layer = config;
  // Heads of models whose projections have biases say so by other keys, or by having them.
  if (loader.has("layers.0.self_attn.q_proj.bias")) of_layer.attention_bias = true;
  const auto if_there = [&](const char* name) {
    return loader.has(std::string(name) + ".weight") ? std::string(name) : std::string();
  };
  auto model = build_layer_head({.decoder = {.before_attention = ""},
                                 .layer = "layers.0.",
                                 .join = "fc",
                                 .token_norm = if_there("embedding_layernorm"),
                                 .state_norm = if_there("hidden_states_layernorm"),
                                 .norm = ""},
                                of_layer, num_positions, loader);
  // Some repeat what they share with the model.
  constexpr std::string_view kElsewhere[] = {"embed_tokens.", "lm_head."};
  constexpr std::string_view kBuffer = ".rotary_emb.inv_freq";
  QUIRE_RETURN_IF_ERROR(loader.finish({&kBuffer, 1}, {}, kElsewhere));
  return model;
}

}  // namespace quire::models
