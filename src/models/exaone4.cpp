#include "models/exaone4.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "models/moe_family.h"

namespace quire::models {
namespace {

constexpr int32_t kExaoneWindow = 4096;
constexpr RoutedMoeDefaults kKExaone{
    .num_experts = 64, .experts_per_token = 8, .size = 1024, .num_shared = 1, .first_sparse = 1, .scale = 2.5};
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

void set_exaone_moe(ModelConfig& out) {
  out.architecture = "ExaoneMoeForCausalLM";
  set_sigmoid_router(out.moe);
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

Result<ModelConfig> read_exaone_moe_config(const boost::json::object& config, const boost::json::object& generation) {
  static constexpr KeyName kNames[] = {{"num_shared_experts", "n_shared_experts"}};
  const boost::json::object usual = with_usual_keys(config, kNames);
  const ConfigReader reader(usual);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_exaone4_config(config, generation));
  out.attention_bias = out.attention_output_bias = false;
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_routed_moe(usual, out, kKExaone));
  set_exaone_moe(out);
  QUIRE_RETURN_IF_ERROR(read_mlp_layer_types(config, out.moe));
  QUIRE_ASSIGN_OR_RETURN(out.moe.normalise, reader.boolean_or("norm_topk_prob", true));
  QUIRE_RETURN_IF_ERROR(read_groups(reader, 1, 1, out.moe));
  return out;
}

Result<ModelConfig> read_exaone_moe_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader));
  QUIRE_RETURN_IF_ERROR(read_gguf_next_layers(reader, 0, out));
  QUIRE_RETURN_IF_ERROR(read_gguf_windows(reader, kWindowPeriod, out));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, reader.window());
  set_exaone4(window.has_value(), out);
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_gguf_routed_moe(reader, out, {}));
  set_exaone_moe(out);
  QUIRE_RETURN_IF_ERROR(read_gguf_groups(reader, out.moe));
  return out;
}

Result<std::unique_ptr<Model>> build_exaone_moe(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  const std::vector<std::string> next_layers = prefixes_of_next_layers(config);
  DecoderShape shape{.qk_norm = nn::QkNorm::kHead, .feed_forward = sparse_or_dense, .others = {"mtp."}};
  shape.others.insert(shape.others.end(), next_layers.begin(), next_layers.end());
  return build_decoder(shape, config, num_positions, loader);
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
