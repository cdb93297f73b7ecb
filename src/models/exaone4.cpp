#include "models/exaone4.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"

namespace quire::models {
namespace {

constexpr int32_t kExaoneWindow = 4096;
constexpr int64_t kWindowPeriod = 4;  // every so many-th layer has no window, where the file does not say

void set_exaone4(bool has_windows, ModelConfig& out) {
  out.architecture = "Exaone4ForCausalLM";
  if (!has_windows) return;
  for (const int32_t window : out.layer_windows) out.unrotated_layers.push_back(window == 0);
}

// A number of layers, or a letter for each of them, "LLLG", the last of which has no window.
Result<int64_t> read_period(const boost::json::object& config) {
  const ConfigReader reader(config);
  const boost::json::value* found = config.if_contains("sliding_window_pattern");
  if (found != nullptr && found->is_string()) {
    QUIRE_ASSIGN_OR_RETURN(const std::string letters, reader.text_or("sliding_window_pattern", ""));
    if (!letters.empty() && letters.find_first_not_of('L') == letters.size() - 1 && letters.back() == 'G')
      return static_cast<int64_t>(letters.size());
    return unimplemented("config: sliding_window_pattern \"{}\" is not supported; supported: letters such as LLLG",
                         letters);
  }
  return reader.integer_or("sliding_window_pattern", kWindowPeriod, 1, 1 << 20);
}

}  // namespace

Result<ModelConfig> read_exaone4_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out,
                         read_decoder_config(config, generation, {.num_kv_heads = 32, .norm_eps = 1e-5}));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config, kExaoneWindow));
  int64_t period = 1;  // no layer has a window
  if (window) {
    QUIRE_ASSIGN_OR_RETURN(period, read_period(config));
  }
  QUIRE_RETURN_IF_ERROR(read_layer_windows(
      config, window.value_or(0), [&](int32_t layer) { return (layer + 1) % period != 0; }, out));
  set_exaone4(window.has_value(), out);
  return out;
}

Result<ModelConfig> read_exaone4_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader));
  QUIRE_RETURN_IF_ERROR(read_gguf_windows(reader, kWindowPeriod, out));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, reader.window());
  set_exaone4(window.has_value(), out);
  return out;
}

Result<std::unique_ptr<Model>> build_exaone4(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.before_attention = "",
                        .after_attention = "post_attention_layernorm",
                        .before_mlp = "",
                        .after_mlp = "post_feedforward_layernorm",
                        .qk_norm = nn::QkNorm::kHead},
                       config, num_positions, loader);
}

}  // namespace quire::models
