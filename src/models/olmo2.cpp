#include "models/olmo2.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "nn/rotary.h"

namespace quire::models {
namespace {

constexpr int64_t kWindowInterval = 4;  // every so many-th layer has no window, where nothing else is said

}  // namespace

Result<ModelConfig> read_olmo2_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation, {.norm_eps = 1e-5}));
  out.architecture = "Olmo2ForCausalLM";
  if (ConfigReader(config).has("sliding_window")) {
    return unimplemented("config: sliding_window is set, which makes this an OLMo 3: its class is Olmo3ForCausalLM");
  }
  return out;
}

Result<ModelConfig> read_olmo3_config(const boost::json::object& config, const boost::json::object& generation) {
  constexpr double kTheta = 5e5;
  QUIRE_ASSIGN_OR_RETURN(
      ModelConfig out,
      read_decoder_config(config, generation, {.norm_eps = 1e-5, .rope_theta = kTheta, .scaled_context = true}));
  out.architecture = "Olmo3ForCausalLM";
  QUIRE_ASSIGN_OR_RETURN(out.rope, read_rope_of_layers(config, "full_attention", "rope_theta", kTheta, out));
  QUIRE_ASSIGN_OR_RETURN(out.window_rope, read_rope_of_layers(config, "sliding_attention", "rope_theta", kTheta, out));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config, 4096));
  QUIRE_RETURN_IF_ERROR(read_layer_windows(
      config, window.value_or(0), [](int32_t layer) { return (layer + 1) % kWindowInterval != 0; }, out));
  return out;
}

Result<ModelConfig> read_olmo2_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader));
  out.architecture = "Olmo2ForCausalLM";
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, reader.window());
  if (!window) return out;
  out.architecture = "Olmo3ForCausalLM";
  out.window_rope = RopeConfig{.rotary_dim = out.rope.rotary_dim};
  QUIRE_ASSIGN_OR_RETURN(out.window_rope->theta, reader.number_or("rope.freq_base_swa", out.rope.theta));
  QUIRE_RETURN_IF_ERROR(nn::validate(*out.window_rope, out.head_dim).with_prefix("metadata: "));
  QUIRE_RETURN_IF_ERROR(read_gguf_windows(reader, kWindowInterval, out));
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
