#include "models/gemma2.h"

#include <cmath>

#include "models/decoder.h"

namespace quire::models {

Result<ModelConfig> read_gemma_config(const boost::json::object& config, const boost::json::object& generation,
                                      int64_t default_max_position) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation,
                                                              {.num_kv_heads = 4,
                                                               .head_dim = 256,
                                                               .max_position = default_max_position,
                                                               .tie_word_embeddings = true,
                                                               .scaled_context = true,
                                                               .activation_key = "hidden_activation",
                                                               .activation = "gelu_pytorch_tanh"}));
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(out.attends_both_ways, reader.boolean_or("use_bidirectional_attention", false));
  out.norm_weight_offset = 1;  // stored around 0
  out.embedding_scale = std::sqrt(static_cast<double>(out.hidden_size));
  QUIRE_ASSIGN_OR_RETURN(const double scalar, reader.number_or("query_pre_attn_scalar", 256));
  if (!(scalar > 0)) return invalid_argument("config: query_pre_attn_scalar is {}, expected more than 0", scalar);
  out.attention_scale = 1.0 / std::sqrt(scalar);
  return out;
}

Result<ModelConfig> read_gemma_gguf(const GgufReader& reader, int32_t layers_of_the_largest) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out,
                         read_gguf_decoder(reader, {.activation = Activation::kGeluTanh, .scaled_context = true}));
  out.norm_weight_offset = 0;  // converters add the 1
  out.embedding_scale = std::sqrt(static_cast<double>(out.hidden_size));
  // Scores are scaled by the size of a head, but for the largest model of either generation.
  const int64_t scalar = out.num_layers == layers_of_the_largest ? out.hidden_size / out.num_heads : out.head_dim;
  if (scalar < 1) return invalid_argument("metadata: {} heads of a hidden size of {}", out.num_heads, out.hidden_size);
  out.attention_scale = 1.0 / std::sqrt(static_cast<double>(scalar));
  return out;
}

Result<double> read_gguf_soft_cap(const GgufReader& reader, std::string_view key, double fallback) {
  QUIRE_ASSIGN_OR_RETURN(const double cap, reader.number_or(key, fallback));
  if (cap <= 0 && reader.has(key)) {
    return invalid_argument("metadata \"{}\" is {}, expected more than 0", reader.full(key), cap);
  }
  return cap;
}

namespace {

// Where the configuration does not say.
constexpr double kScoresCap = 50;
constexpr double kLogitsCap = 30;
constexpr int32_t kGemma2Window = 4096;

constexpr int32_t kLargestGemma2 = 46;

constexpr auto kHasGemma2Window = [](int32_t layer) { return layer % 2 == 0; };

// A soft cap: `fallback` where it is absent, none where it is null. Where a configuration is written from what differs
// from the defaults alone, null is a value like any other.
Result<double> read_soft_cap(const ConfigReader& reader, std::string_view key, double fallback) {
  if (reader.mentions(key) && !reader.has(key)) return 0.0;
  QUIRE_ASSIGN_OR_RETURN(const double cap, reader.number_or(key, fallback));
  if (!(cap > 0)) return invalid_argument("config: {} is {}, expected more than 0 or null", key, cap);
  return cap;
}

}  // namespace

Result<ModelConfig> read_gemma2_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gemma_config(config, generation, 8192));
  out.architecture = "Gemma2ForCausalLM";
  if (out.attends_both_ways) return unimplemented("config: use_bidirectional_attention is true, supported: false");
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(out.attention_soft_cap, read_soft_cap(reader, "attn_logit_softcapping", kScoresCap));
  QUIRE_ASSIGN_OR_RETURN(out.logits_soft_cap, read_soft_cap(reader, "final_logit_softcapping", kLogitsCap));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config, kGemma2Window));
  QUIRE_RETURN_IF_ERROR(read_layer_windows(config, window.value_or(0), kHasGemma2Window, out));
  return out;
}

Result<ModelConfig> read_gemma2_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gemma_gguf(reader, kLargestGemma2));
  out.architecture = "Gemma2ForCausalLM";
  QUIRE_ASSIGN_OR_RETURN(out.attention_soft_cap, read_gguf_soft_cap(reader, "attn_logit_softcapping", kScoresCap));
  QUIRE_ASSIGN_OR_RETURN(out.logits_soft_cap, read_gguf_soft_cap(reader, "final_logit_softcapping", kLogitsCap));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, reader.window(kGemma2Window));
  set_layer_windows(window.value_or(0), kHasGemma2Window, out);
  return out;
}

Result<std::unique_ptr<Model>> build_gemma2(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.after_attention = "post_attention_layernorm",
                        .before_mlp = "pre_feedforward_layernorm",
                        .after_mlp = "post_feedforward_layernorm"},
                       config, num_positions, loader);
}

}  // namespace quire::models
