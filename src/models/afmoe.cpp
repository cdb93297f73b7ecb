#include "models/afmoe.h"

#include <cmath>

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "models/moe_family.h"

namespace quire::models {
namespace {

constexpr int64_t kFullInterval = 4;  // every so many-th layer has no window, where nothing else is said

void set_afmoe(ModelConfig& out) {
  out.architecture = "AfmoeForCausalLM";
  out.unrotated_layers.clear();
  for (const int32_t window : out.layer_windows) out.unrotated_layers.push_back(window == 0);
  set_sigmoid_router(out.moe);
  out.moe.normalise = true;
}

// What its class has no other behaviour for.
Status check_afmoe_router(const ConfigReader& reader) {
  QUIRE_ASSIGN_OR_RETURN(const bool normalises, reader.boolean_or("route_norm", true));
  if (!normalises) return unimplemented("config: route_norm is false, which is not supported; supported: true");
  QUIRE_ASSIGN_OR_RETURN(const std::string score, reader.text_or("score_func", "sigmoid"));
  if (score == "sigmoid") return {};
  return unimplemented("config: score_func is \"{}\", which is not supported; supported: \"sigmoid\"", score);
}

}  // namespace

Result<ModelConfig> read_afmoe_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(
      ModelConfig out,
      read_decoder_config(config, generation, {.head_dim = 128, .max_position = 16384, .norm_eps = 1e-5}));
  static constexpr KeyName kNames[] = {{"num_shared_experts", "n_shared_experts"},
                                       {"num_dense_layers", "first_k_dense_replace"},
                                       {"route_scale", "routed_scaling_factor"}};
  const ConfigReader reader(config);
  QUIRE_RETURN_IF_ERROR(check_afmoe_router(reader));
  QUIRE_ASSIGN_OR_RETURN(
      out.moe,
      read_routed_moe(with_usual_keys(config, kNames), out,
                      {.num_experts = 64, .experts_per_token = 6, .size = 1408, .num_shared = 2, .first_sparse = 1}));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config, 1024));
  if (!window) return unimplemented("config: sliding_window is null, expected the window of the layers that have one");
  QUIRE_ASSIGN_OR_RETURN(const int64_t interval,
                         reader.integer_or("global_attn_every_n_layers", kFullInterval, 1, 1 << 20));
  QUIRE_RETURN_IF_ERROR(read_layer_windows(
      config, *window, [&](int32_t layer) { return (layer + 1) % interval != 0; }, out));
  QUIRE_ASSIGN_OR_RETURN(const bool scales, reader.boolean_or("mup_enabled", false));
  if (scales) out.embedding_scale = std::sqrt(static_cast<double>(out.hidden_size));
  set_afmoe(out);
  return out;
}

Result<ModelConfig> read_afmoe_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader));
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_gguf_routed_moe(reader, out, {}));
  QUIRE_RETURN_IF_ERROR(reader.integer("attention.sliding_window", 1, int64_t{1} << 30).status());
  QUIRE_RETURN_IF_ERROR(read_gguf_windows(reader, kFullInterval, out));
  out.embedding_scale = std::sqrt(static_cast<double>(out.hidden_size));  // which no key says
  set_afmoe(out);
  return out;
}

Result<std::unique_ptr<Model>> build_afmoe(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.after_attention = "post_attention_layernorm",
                        .before_mlp = "pre_mlp_layernorm",
                        .after_mlp = "post_mlp_layernorm",
                        .qk_norm = nn::QkNorm::kHead,
                        .attention_gate = "gate_proj",
                        .feed_forward = sparse_or_dense},
                       config, num_positions, loader);
}

}  // namespace quire::models
