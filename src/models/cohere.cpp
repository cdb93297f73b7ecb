#include "models/cohere.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"

namespace quire::models {
namespace {

constexpr int64_t kCommandInterval = 4;  // every so many-th layer has no window, where nothing else is said

Result<ModelConfig> read_command(const boost::json::object& config, const boost::json::object& generation,
                                 double theta) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation,
                                                              {.max_position = 8192,
                                                               .norm_eps_key = "layer_norm_eps",
                                                               .norm_eps = 1e-5,
                                                               .rope_theta = theta,
                                                               .tie_word_embeddings = true}));
  out.rope.interleaved = true;
  QUIRE_ASSIGN_OR_RETURN(out.logits_scale, ConfigReader(config).number_or("logit_scale", 0.0625));
  return out;
}

Result<ModelConfig> read_command(const GgufReader& reader) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, {.norm_eps_key = "attention.layer_norm_epsilon",
                                                                     .interleaved = true}));
  QUIRE_ASSIGN_OR_RETURN(out.logits_scale, reader.number_or("logit_scale", 1));
  return out;
}

// Layers see positions, or all of the text.
void set_cohere2(ModelConfig& out) {
  out.architecture = "Cohere2ForCausalLM";
  out.unrotated_layers.clear();
  for (const int32_t window : out.layer_windows) out.unrotated_layers.push_back(window == 0);
}

}  // namespace

Result<ModelConfig> read_cohere_config(const boost::json::object& config, const boost::json::object& generation) {
  constexpr double kTheta = 5e5;
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_command(config, generation, kTheta));
  out.architecture = "CohereForCausalLM";
  QUIRE_ASSIGN_OR_RETURN(out.norms_heads, ConfigReader(config).boolean_or("use_qk_norm", false));
  return out;
}

Result<ModelConfig> read_cohere2_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_command(config, generation, 1e4));
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(const int64_t pattern,
                         reader.integer_or("sliding_window_pattern", kCommandInterval, 1, 1 << 20));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config, 4096));
  if (!window) return unimplemented("config: sliding_window is null, expected the window of the layers that have one");
  QUIRE_RETURN_IF_ERROR(read_layer_windows(
      config, *window, [&](int32_t layer) { return (layer + 1) % pattern != 0; }, out));
  set_cohere2(out);
  return out;
}

Result<ModelConfig> read_cohere_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_command(reader));
  out.architecture = "CohereForCausalLM";
  out.norms_heads = reader.has_tensor_that_ends_with(".self_attn.q_norm.weight");
  return out;
}

Result<ModelConfig> read_cohere2_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_command(reader));
  QUIRE_RETURN_IF_ERROR(reader.integer("attention.sliding_window", 1, int64_t{1} << 30).status());
  QUIRE_RETURN_IF_ERROR(read_gguf_windows(reader, kCommandInterval, out));
  set_cohere2(out);
  return out;
}

Result<std::unique_ptr<Model>> build_cohere(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.norm = nn::NormKind::kLayerWithoutBias,
                        .before_mlp = "",
                        .parallel = true,
                        .qk_norm = config.norms_heads ? nn::QkNorm::kLayerOfHead : nn::QkNorm::kNone},
                       config, num_positions, loader);
}

}  // namespace quire::models
