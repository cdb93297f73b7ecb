#include "models/olmo2.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"

namespace quire::models {

Result<ModelConfig> read_olmo2_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation, {.norm_eps = 1e-5}));
  out.architecture = "Olmo2ForCausalLM";
  if (ConfigReader(config).has("sliding_window")) {
    return unimplemented("config: sliding_window is set, which makes this an OLMo 3; supported: OLMo 2");
  }
  return out;
}

Result<ModelConfig> read_olmo2_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader));
  out.architecture = "Olmo2ForCausalLM";
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, reader.window());
  if (window) {
    return unimplemented("metadata \"{}\" is {}, which makes this an OLMo 3; supported: OLMo 2",
                         reader.full("attention.sliding_window"), *window);
  }
  return out;
}

Result<std::unique_ptr<Model>> build_olmo2(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.before_attention = "",
                        .after_attention = "post_attention_layernorm",
                        .before_mlp = "",
                        .after_mlp = "post_feedforward_layernorm",
                        .qk_norm = nn::QkNorm::kProjection},
                       config, num_positions, loader);
}

}  // namespace quire::models
