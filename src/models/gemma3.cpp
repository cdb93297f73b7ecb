#include "models/gemma3.h"

#include "models/decoder.h"
#include "models/gemma2.h"
#include "nn/rotary.h"

namespace quire::models {
namespace {

// The text model's own configuration. Published ones leave out what is as in the reference's configuration class, sizes
// too.
Result<boost::json::object> text_with_sizes(const boost::json::object& config) {
  if (!config.contains("text_config")) return config;
  QUIRE_ASSIGN_OR_RETURN(boost::json::object text, text_config(config));
  const std::pair<const char*, int64_t> sizes[] = {{"vocab_size", 262208},
                                                   {"hidden_size", 2304},
                                                   {"intermediate_size", 9216},
                                                   {"num_hidden_layers", 26},
                                                   {"num_attention_heads", 8}};
  for (const auto& [key, size] : sizes) {
    if (!text.contains(key)) text[key] = size;
  }
  return text;
}

constexpr double kWindowTheta = 1e4;  // where the configuration does not say
constexpr int32_t kLargestGemma3 = 62;
constexpr int64_t kWindowPattern = 6;  // every so many-th layer has no window

}  // namespace

Result<ModelConfig> read_gemma3_config(const boost::json::object& whole, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(const boost::json::object config, text_with_sizes(whole));
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gemma_config(config, generation, 131072));
  out.architecture = "Gemma3ForCausalLM";
  const ConfigReader reader(config);
  if (reader.has("attn_logit_softcapping")) {
    return unimplemented("config: attn_logit_softcapping is set, on which implementations differ; supported: null");
  }
  if (reader.has("final_logit_softcapping")) {
    QUIRE_ASSIGN_OR_RETURN(out.logits_soft_cap, reader.number_or("final_logit_softcapping", 0));
    if (!(out.logits_soft_cap > 0)) {
      return invalid_argument("config: final_logit_softcapping is {}, expected more than 0 or null",
                              out.logits_soft_cap);
    }
  }
  QUIRE_ASSIGN_OR_RETURN(out.rope, read_rope_of_layers(config, "full_attention", "rope_theta", 1e6, out));
  QUIRE_ASSIGN_OR_RETURN(out.window_rope,
                         read_rope_of_layers(config, "sliding_attention", "rope_local_base_freq", kWindowTheta, out));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config, 4096));
  // Both ways (EmbeddingGemma; Vera et al., 2025) a token sees half a window before and half a window behind it.
  const int32_t seen = out.attends_both_ways ? window.value_or(0) / 2 + 1 : window.value_or(0);
  QUIRE_ASSIGN_OR_RETURN(const int64_t pattern,
                         reader.integer_or("sliding_window_pattern", kWindowPattern, 1, 1 << 20));
  const auto has_window = [&](int32_t layer) { return (layer + 1) % pattern != 0; };
  QUIRE_RETURN_IF_ERROR(read_layer_windows(config, window ? seen : 0, has_window, out));
  return out;
}

Result<ModelConfig> read_gemma3_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gemma_gguf(reader, kLargestGemma3));
  out.architecture = "Gemma3ForCausalLM";
  if (reader.has("attn_logit_softcapping")) {
    return unimplemented("metadata \"{}\" is set, on which implementations differ; leave it out",
                         reader.full("attn_logit_softcapping"));
  }
  QUIRE_ASSIGN_OR_RETURN(out.logits_soft_cap, read_gguf_soft_cap(reader, "final_logit_softcapping", 0));
  out.window_rope = RopeConfig{.rotary_dim = out.head_dim};
  QUIRE_ASSIGN_OR_RETURN(out.window_rope->theta, reader.number_or("rope.freq_base_swa", kWindowTheta));
  QUIRE_RETURN_IF_ERROR(nn::validate(*out.window_rope, out.head_dim).with_prefix("metadata: "));
  QUIRE_RETURN_IF_ERROR(read_gguf_windows(reader, kWindowPattern, out));
  return out;
}

Result<std::unique_ptr<Model>> build_gemma3(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  DecoderShape shape{.after_attention = "post_attention_layernorm",
                     .before_mlp = "pre_feedforward_layernorm",
                     .after_mlp = "post_feedforward_layernorm",
                     .qk_norm = nn::QkNorm::kHead};
  find_text_model(loader, shape);
  return build_decoder(shape, config, num_positions, loader);
}

}  // namespace quire::models
