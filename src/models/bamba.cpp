#include "models/bamba.h"

#include <algorithm>
#include <cmath>

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/mamba_family.h"

namespace quire::models {
namespace {

// "attn_layer_indices": the layers with attention. None, or an empty list: all are Mamba's.
Status read_bamba_layers(const boost::json::object& config, ModelConfig& out) {
  out.recurrent_layers.assign(static_cast<size_t>(out.num_layers), true);
  const ConfigReader reader(config);
  if (!reader.has("attn_layer_indices")) return {};
  QUIRE_ASSIGN_OR_RETURN(const std::vector<double> with_attention, reader.numbers("attn_layer_indices"));
  for (const double layer : with_attention) {
    if (layer < 0 || layer >= out.num_layers || layer != std::floor(layer)) {
      return invalid_argument("config: attn_layer_indices has {}, expected integers from 0 to {}", layer,
                              out.num_layers - 1);
    }
    out.recurrent_layers[static_cast<size_t>(layer)] = false;
  }
  // Without a state it is no recurrent model.
  if (std::ranges::find(out.recurrent_layers, true) == out.recurrent_layers.end()) out.recurrent_layers.clear();
  return {};
}

std::unique_ptr<nn::FeedForward> bamba_mlp(nn::Loader& loader, const std::string& prefix, const ModelConfig& config,
                                           int32_t /*layer*/) {
  return std::make_unique<nn::GatedMlp>(loader, prefix + "feed_forward", config.hidden_size, config.intermediate_size,
                                        config.mlp_bias, config.activation);
}

}  // namespace

Result<ModelConfig> read_bamba_config(const boost::json::object& stated, const boost::json::object& generation) {
  // The reference takes half of a head whatever is said beside the rope's parameters.
  boost::json::object config = stated;
  config.erase("partial_rotary_factor");
  QUIRE_ASSIGN_OR_RETURN(
      ModelConfig out,
      read_decoder_config(
          config, generation,
          {.num_kv_heads = 8, .max_position = 262144, .norm_eps = 1e-5, .rotary_share = 0.5, .partial_rotary = true}));
  out.architecture = "BambaForCausalLM";
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, ConfigReader(config).boolean_or("mlp_bias", false));
  QUIRE_RETURN_IF_ERROR(read_bamba_layers(config, out));
  if (out.recurrent_layers.empty()) return out;
  Mamba2Config sizes;
  QUIRE_ASSIGN_OR_RETURN(const int64_t inner_size, expanded_size(config, out));
  QUIRE_RETURN_IF_ERROR(read_mamba(config, out, inner_size, sizes));
  out.family = sizes;
  return out;
}

Result<std::unique_ptr<Model>> build_bamba(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.before_mlp = "pre_ff_layernorm",
                        .after_layers = "final_layernorm",
                        .feed_forward = bamba_mlp,
                        .attention = mamba_or_attention},
                       config, num_positions, loader);
}

}  // namespace quire::models
