#include "models/olmo_hybrid.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/qwen3_next.h"
#include "nn/gated_delta_net.h"

namespace quire::models {
namespace {

constexpr int32_t kAttentionEvery = 4;   // layers, where nothing else is said
constexpr double kOutputNormEps = 1e-5;  // of a delta net, whatever the configuration says

Status read_olmo_hybrid_layers(const boost::json::object& config, ModelConfig& out) {
  constexpr std::array<std::string_view, 1> kRecurrent = {"linear_attention"};
  constexpr std::array<std::string_view, 1> kAttention = {"full_attention"};
  if (ConfigReader(config).has("layer_types")) {
    QUIRE_ASSIGN_OR_RETURN(out.recurrent_layers,
                           read_recurrent_layers(config, "layer_types", out.num_layers, kRecurrent, kAttention));
    return {};
  }
  for (int32_t i = 0; i < out.num_layers; ++i) out.recurrent_layers.push_back((i + 1) % kAttentionEvery != 0);
  if (out.num_layers < kAttentionEvery) out.recurrent_layers.back() = false;
  return {};
}

// A base frequency of null says that nothing rotates; where it is not named at all there is the usual one.
bool rotates_olmo_heads(const boost::json::object& config) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const boost::json::value* found = config.if_contains(key);
    const boost::json::object* entry = found == nullptr ? nullptr : found->if_object();
    if (entry == nullptr || entry->empty()) continue;
    if (entry->contains("rope_theta")) return !entry->at("rope_theta").is_null();
    break;
  }
  return !config.contains("rope_theta") || !config.at("rope_theta").is_null();
}

std::unique_ptr<nn::SelfAttention> delta_net_or_attention(nn::Loader& loader, const std::string& prefix,
                                                          const ModelConfig& config, int32_t layer) {
  if (!config.recurrent_layers[static_cast<size_t>(layer)]) {
    return std::make_unique<nn::Attention>(loader, prefix + "self_attn",
                                           attention_config({.qk_norm = nn::QkNorm::kProjection}, config, layer));
  }
  return std::make_unique<nn::GatedDeltaNet>(loader, prefix + "linear_attn",
                                             nn::GatedDeltaNetOptions{.sizes = std::get<DeltaNetConfig>(config.family),
                                                                      .hidden_size = config.hidden_size,
                                                                      .norm_eps = kOutputNormEps});
}

// What files call the norms before the blocks of a layer with a delta net.
constexpr std::string_view kStoredBeforeAttention = "attention_layer_norm";
constexpr std::string_view kStoredBeforeMlp = "feedforward_layer_norm";

// The reference writes the norm after attention by the name that it has in the other layers.
template <bool kIsRenamed>
void shape_olmo_layer(const ModelConfig& config, int32_t layer, DecoderShape& shape) {
  if (config.recurrent_layers[static_cast<size_t>(layer)]) return;
  shape.before_attention = "";
  shape.after_attention = kIsRenamed ? kStoredBeforeMlp : "post_attention_layernorm";
  shape.before_mlp = "";
  shape.after_mlp = "post_feedforward_layernorm";
}

}  // namespace

Result<ModelConfig> read_olmo_hybrid_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation, {.max_position = 65536}));
  out.architecture = "OlmoHybridForCausalLM";
  QUIRE_RETURN_IF_ERROR(read_olmo_hybrid_layers(config, out));
  if (!rotates_olmo_heads(config)) out.unrotated_layers.assign(static_cast<size_t>(out.num_layers), true);
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(const int64_t key_heads, reader.integer_or("linear_num_key_heads", out.num_heads, 1, 1 << 16));
  DeltaNetConfig usual{.num_key_heads = static_cast<int32_t>(key_heads),
                       .num_value_heads = out.num_heads,
                       .key_head_dim = static_cast<int32_t>(3 * out.hidden_size / (4 * key_heads)),
                       .conv_kernel = 4};
  QUIRE_ASSIGN_OR_RETURN(const int64_t key_dim,
                         reader.integer_or("linear_key_head_dim", usual.key_head_dim, 1, ops::kMostRecurrenceKeyDim));
  usual.value_head_dim = static_cast<int32_t>(std::min(2 * key_dim, kMostHeadDim));
  QUIRE_RETURN_IF_ERROR(read_delta_net(config, usual, out));
  auto& sizes = std::get<DeltaNetConfig>(out.family);
  if (sizes.key_head_dim < 1 || sizes.key_head_dim > ops::kMostRecurrenceKeyDim) {
    return invalid_argument(
        "config: linear_key_head_dim is {}, three quarters of hidden_size over linear_num_key_heads, expected 1 to {}",
        sizes.key_head_dim, ops::kMostRecurrenceKeyDim);
  }
  if (sizes.num_key_heads != sizes.num_value_heads) {
    return unimplemented("config: linear_num_value_heads={} and linear_num_key_heads={}; supported: as many of both",
                         sizes.num_value_heads, sizes.num_key_heads);
  }
  QUIRE_ASSIGN_OR_RETURN(const bool turns, reader.boolean_or("linear_allow_neg_eigval", true));
  if (turns) sizes.most_update = 2;
  return out;
}

Result<std::unique_ptr<Model>> build_olmo_hybrid(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  DecoderShape shape{.attention = delta_net_or_attention, .of_layer = shape_olmo_layer<false>};
  const auto has_norm = [&](bool recurrent, std::string_view norm) {
    const auto first = std::ranges::find(config.recurrent_layers, recurrent) - config.recurrent_layers.begin();
    return loader.has(fmt::format("model.layers.{}.{}.weight", first, norm));
  };
  if (has_norm(true, kStoredBeforeAttention)) {
    shape.before_attention = kStoredBeforeAttention;
    shape.before_mlp = kStoredBeforeMlp;
  }
  if (has_norm(false, kStoredBeforeMlp)) shape.of_layer = shape_olmo_layer<true>;
  return build_decoder(shape, config, num_positions, loader);
}

}  // namespace quire::models
