#include "models/gemma3.h"

#include "models/decoder.h"
#include "models/gemma2.h"
#include "nn/rotary.h"

namespace quire::models {
namespace {

// The text model's own configuration, with the special ids of the whole. Published ones leave out what is as in the
// reference's configuration class, sizes too.
Result<boost::json::object> text_config(const boost::json::object& config) {
  const boost::json::value* found = config.if_contains("text_config");
  if (found == nullptr) return config;
  const boost::json::object* inner = found->if_object();
  if (inner == nullptr) return invalid_argument("config: text_config must be an object");
  boost::json::object text = *inner;
  for (const char* key : {"eos_token_id", "bos_token_id", "tie_word_embeddings"}) {
    if (config.contains(key)) text[key] = config.at(key);
  }
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

// One of rope_parameters' entries by the type of layer. Before there were such entries the keys stood alone, and a
// scaling was the full layers'.
Result<RopeConfig> read_entry(const boost::json::object& config, const char* type, const char* older_key, double theta,
                              const ModelConfig& model) {
  const boost::json::value* found = config.if_contains("rope_parameters");
  const boost::json::object* all = found == nullptr ? nullptr : found->if_object();
  const boost::json::value* entry = all == nullptr ? nullptr : all->if_contains(type);
  ConfigDefaults defaults;
  QUIRE_ASSIGN_OR_RETURN(defaults.rope_theta, ConfigReader(config).number_or(older_key, theta));
  if (entry != nullptr && entry->is_object()) return read_rope_entry(entry->get_object(), model, defaults);
  const bool scaled = std::string_view(type) == "full_attention";
  const bool flat = all != nullptr && (all->contains("rope_type") || all->contains("rope_theta"));
  if (!scaled || !(flat || ConfigReader(config).has("rope_scaling"))) return read_rope_entry({}, model, defaults);
  return read_rope(config, model, defaults);
}

Result<RopeConfig> read_layer_rope(const boost::json::object& config, const char* type, const char* older_key,
                                   double theta, const ModelConfig& model) {
  QUIRE_ASSIGN_OR_RETURN(RopeConfig rope, read_entry(config, type, older_key, theta, model));
  rope.truncate = true;  // yarn's: the reference looks for it beside the entries, where it is no key
  return rope;
}

constexpr double kWindowTheta = 1e4;  // where the configuration does not say
constexpr int32_t kLargestGemma3 = 62;
constexpr int64_t kWindowPattern = 6;  // every so many-th layer has no window

// Those that a list says, or every layer but each n-th; none where the file has no window.
Status read_gguf_windows(const GgufReader& reader, ModelConfig& out) {
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> found, reader.window());
  const int32_t window = found.value_or(0);
  if (reader.metadata().is_array(reader.full(kPattern))) {
    QUIRE_ASSIGN_OR_RETURN(const auto windows, reader.metadata().booleans(reader.full(kPattern)));
    if (std::ssize(*windows) != out.num_layers) {
      return data_loss("metadata \"{}\" has {} entries, expected one for each of the {} layers", reader.full(kPattern),
                       windows->size(), out.num_layers);
    }
    set_layer_windows(
        window, [&](int32_t layer) { return bool{(*windows)[static_cast<size_t>(layer)]}; }, out);
    return {};
  }
  QUIRE_ASSIGN_OR_RETURN(const int64_t pattern, reader.integer_or(kPattern, kWindowPattern, 1, 1 << 20));
  set_layer_windows(
      window, [&](int32_t layer) { return (layer + 1) % pattern != 0; }, out);
  return {};
}

}  // namespace

Result<ModelConfig> read_gemma3_config(const boost::json::object& whole, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(const boost::json::object config, text_config(whole));
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
  QUIRE_ASSIGN_OR_RETURN(out.rope, read_layer_rope(config, "full_attention", "rope_theta", 1e6, out));
  QUIRE_ASSIGN_OR_RETURN(out.window_rope,
                         read_layer_rope(config, "sliding_attention", "rope_local_base_freq", kWindowTheta, out));
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
  QUIRE_RETURN_IF_ERROR(read_gguf_windows(reader, out));
  return out;
}

Result<std::unique_ptr<Model>> build_gemma3(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  DecoderShape shape{.after_attention = "post_attention_layernorm",
                     .before_mlp = "pre_feedforward_layernorm",
                     .after_mlp = "post_feedforward_layernorm",
                     .qk_norm = nn::QkNorm::kHead};
  // Where the text model is a part of a larger one.
  for (const char* root : {"model.language_model", "language_model.model"}) {
    if (!loader.has(std::string(root) + ".embed_tokens.weight")) continue;
    shape.root = root;
    if (shape.root.starts_with("language_model")) shape.head = "language_model.lm_head";
    shape.others = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."};
  }
  return build_decoder(shape, config, num_positions, loader);
}

}  // namespace quire::models
