#include "models/glm4_moe.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "models/moe_family.h"

namespace quire::models {
namespace {

constexpr RoutedMoeDefaults kGlm4{
    .num_experts = 128, .experts_per_token = 8, .size = 1408, .num_shared = 1, .first_sparse = 1};
constexpr int64_t kGlm4NextLayers = 1;
constexpr int64_t kSolarExpertSize = 1280;
constexpr int32_t kAllLayers = 62;  // dots.llm1's, none of which has a window

}  // namespace

Result<ModelConfig> read_glm4_moe_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(
      ModelConfig out,
      read_decoder_config(
          config, generation,
          {.num_kv_heads = 8, .max_position = 131072, .norm_eps = 1e-5, .rotary_share = 0.5, .partial_rotary = true}));
  out.architecture = "Glm4MoeForCausalLM";
  out.attention_output_bias = false;
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(out.norms_heads, reader.boolean_or("use_qk_norm", false));
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_routed_moe(config, out, kGlm4));
  set_sigmoid_router(out.moe);
  QUIRE_ASSIGN_OR_RETURN(out.moe.normalise, reader.boolean_or("norm_topk_prob", true));
  QUIRE_RETURN_IF_ERROR(read_groups(reader, 1, 1, out.moe));
  int64_t next_layers = kGlm4NextLayers;
  for (const char* key : {"num_nextn_predict_layers", "num_mtp_layers"}) {
    QUIRE_ASSIGN_OR_RETURN(next_layers, reader.integer_or(key, next_layers, 0, 64));
  }
  out.num_next_layers = static_cast<int32_t>(next_layers);
  return out;
}

Result<ModelConfig> read_glm4_moe_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader));
  out.architecture = "Glm4MoeForCausalLM";
  out.attention_output_bias = false;
  out.norms_heads = reader.has_tensor_that_ends_with(".self_attn.q_norm.weight");
  QUIRE_RETURN_IF_ERROR(read_gguf_next_layers(reader, 0, out));
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_gguf_routed_moe(reader, out, kGlm4));
  set_sigmoid_router(out.moe);
  QUIRE_RETURN_IF_ERROR(read_gguf_groups(reader, out.moe));
  return out;
}

Result<ModelConfig> read_dots1_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation, {.num_kv_heads = 32}));
  out.architecture = "Dots1ForCausalLM";
  out.norms_heads = true;
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(const int64_t experts, reader.integer("n_routed_experts", 1, kMostExperts));
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_routed_moe(config, out, {.num_experts = experts, .size = 1408}));
  set_sigmoid_router(out.moe);
  QUIRE_ASSIGN_OR_RETURN(out.moe.normalise, reader.boolean_or("norm_topk_prob", false));
  QUIRE_RETURN_IF_ERROR(read_groups(reader, 1, 1, out.moe));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config, 4096));
  QUIRE_ASSIGN_OR_RETURN(const int64_t full_layers, reader.integer_or("max_window_layers", kAllLayers, 0, 1 << 20));
  QUIRE_RETURN_IF_ERROR(read_layer_windows(
      config, window.value_or(0), [&](int32_t layer) { return layer >= full_layers; }, out));
  return out;
}

Result<ModelConfig> read_dots1_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader));
  out.architecture = "Dots1ForCausalLM";
  out.norms_heads = true;
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_gguf_routed_moe(reader, out, {}));
  set_sigmoid_router(out.moe);
  QUIRE_RETURN_IF_ERROR(read_gguf_groups(reader, out.moe));
  return out;
}

Result<ModelConfig> read_solar_open_config(const boost::json::object& config, const boost::json::object& generation) {
  // There are no dense layers, and no key for their size.
  static constexpr KeyName kNames[] = {{"moe_intermediate_size", "intermediate_size"}};
  boost::json::object complete = with_usual_keys(config, kNames);
  if (!ConfigReader(complete).has("intermediate_size")) complete["intermediate_size"] = kSolarExpertSize;
  QUIRE_ASSIGN_OR_RETURN(
      ModelConfig out,
      read_decoder_config(
          complete, generation,
          {.num_kv_heads = 8, .head_dim = 128, .max_position = 131072, .norm_eps = 1e-5, .rope_theta = 1e6}));
  out.architecture = "SolarOpenForCausalLM";
  out.attention_output_bias = false;
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(const bool norms_heads, reader.boolean_or("use_qk_norm", false));
  if (norms_heads) return unimplemented("config: use_qk_norm is true, which is not supported; supported: false");
  QUIRE_ASSIGN_OR_RETURN(
      out.moe,
      read_routed_moe(config, out,
                      {.num_experts = 128, .experts_per_token = 8, .size = kSolarExpertSize, .num_shared = 1}));
  out.moe.sparse_layers.assign(out.moe.sparse_layers.size(), true);  // whatever the file says, as in the reference
  set_sigmoid_router(out.moe);
  QUIRE_ASSIGN_OR_RETURN(out.moe.normalise, reader.boolean_or("norm_topk_prob", true));
  QUIRE_RETURN_IF_ERROR(read_groups(reader, 1, 1, out.moe));
  return out;
}

Result<std::unique_ptr<Model>> build_glm4_moe(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  const std::vector<std::string> next_layers = prefixes_of_next_layers(config);
  DecoderShape shape = glm4_moe_shape(config);
  shape.others = {next_layers.begin(), next_layers.end()};
  return build_decoder(shape, config, num_positions, loader);
}

DecoderShape glm4_moe_shape(const ModelConfig& config) {
  return {.qk_norm = config.norms_heads ? nn::QkNorm::kHead : nn::QkNorm::kNone, .feed_forward = sparse_or_dense};
}

}  // namespace quire::models
