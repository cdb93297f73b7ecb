#include "models/hunyuan.h"

#include <cmath>
#include <string_view>

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "models/moe_family.h"
#include "nn/rotary.h"

namespace quire::models {
namespace {

// A scaling called dynamic with a number "alpha" is none that depends on a text's length: it stretches the base.
Status stretch_rope(const boost::json::object& config, ModelConfig& out) {
  const ConfigReader top(config);
  double alpha = 0;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {  // the older key wins where it says something
    if (!top.has(key) || config.at(key).get_object().empty()) continue;
    QUIRE_ASSIGN_OR_RETURN(alpha, ConfigReader(config.at(key).get_object()).number_or("alpha", 0));
  }
  if (out.rope.scaling != RopeScaling::kDynamic || alpha == 0) return {};
  if (!(alpha > 0)) return invalid_argument("config: alpha of the rope is {}, expected more than 0", alpha);
  if (out.head_dim <= 2) return invalid_argument("config: head_dim is {}, expected more than 2", out.head_dim);
  out.rope.scaling = RopeScaling::kNone;
  out.rope.theta *= std::pow(alpha, static_cast<double>(out.head_dim) / (out.head_dim - 2));
  return nn::validate(out.rope, out.head_dim).with_prefix("config: ");
}

// An integer, or the same one for each layer.
Status read_one_of_layers(const boost::json::object& config, std::string_view key, int64_t low, int64_t high,
                          int64_t& out) {
  const ConfigReader reader(config);
  if (!reader.has(key) || !config.at(key).is_array()) {
    QUIRE_ASSIGN_OR_RETURN(out, reader.integer_or(key, out, low, high));
    return {};
  }
  QUIRE_ASSIGN_OR_RETURN(const std::vector<double> all, reader.numbers(key));
  for (const double number : all) {
    if (number != all.front())
      return unimplemented("config: {} has {} and {}; supported: one number for all layers", key, all.front(), number);
    if (!(number >= static_cast<double>(low) && number <= static_cast<double>(high)) || number != std::trunc(number))
      return invalid_argument("config: {} holds {}, expected integers from {} to {}", key, number, low, high);
  }
  if (all.empty()) return invalid_argument("config: {} is an empty list, expected a number for each layer", key);
  out = static_cast<int64_t>(all.front());
  return {};
}

Result<ModelConfig> read_layers(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation, {.norm_eps = 1e-5}));
  const ConfigReader reader(config);
  QUIRE_RETURN_IF_ERROR(stretch_rope(config, out));
  for (const char* key : {"use_cla", "use_mla", "mlp_bias"}) {
    QUIRE_ASSIGN_OR_RETURN(const bool is_set, reader.boolean_or(key, false));
    if (is_set) return unimplemented("config: {} is true, which is not supported; supported: false", key);
  }
  QUIRE_ASSIGN_OR_RETURN(const bool norms_heads, reader.boolean_or("use_qk_norm", true));
  if (!norms_heads) return unimplemented("config: use_qk_norm is false, which is not supported; supported: true");
  return out;
}

DecoderShape hunyuan_shape() {
  return {.qk_norm = nn::QkNorm::kHeadRotated, .query_norm = "query_layernorm", .key_norm = "key_layernorm"};
}

void set_hunyuan_moe(ModelConfig& out) {
  out.architecture = "HunYuanMoEV1ForCausalLM";
  out.moe.normalise = true;
}

}  // namespace

Result<ModelConfig> read_hunyuan_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_layers(config, generation));
  out.architecture = "HunYuanDenseV1ForCausalLM";
  return out;
}

Result<ModelConfig> read_hunyuan_gguf(const checkpoint::Checkpoint& checkpoint) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(GgufReader(checkpoint)));
  out.architecture = "HunYuanDenseV1ForCausalLM";
  return out;
}

Result<ModelConfig> read_hunyuan_moe_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_layers(config, generation));
  int64_t chosen = 1;
  for (const char* key : {"num_experts_per_tok", "moe_topk"})
    QUIRE_RETURN_IF_ERROR(read_one_of_layers(config, key, 1, kMostExperts, chosen));
  boost::json::object usual = config;
  usual["num_experts_per_tok"] = chosen;
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_moe(usual, out, {.num_experts = 1, .experts_per_token = 1}));
  // The reference has experts and the shared one of intermediate_size, whatever these say.
  int64_t size = out.intermediate_size;
  QUIRE_RETURN_IF_ERROR(read_one_of_layers(config, "moe_intermediate_size", 1, 1 << 22, size));
  int64_t shared = 1;
  QUIRE_RETURN_IF_ERROR(read_one_of_layers(config, "num_shared_expert", 0, 1 << 16, shared));
  int64_t skipped = 0;
  QUIRE_RETURN_IF_ERROR(read_one_of_layers(config, "moe_layer_num_skipped", 0, 1 << 20, skipped));
  if (size != out.intermediate_size || shared != 1 || skipped != 0) {
    return unimplemented(
        "config: moe_intermediate_size {}, num_shared_expert {}, moe_layer_num_skipped {}; supported: "
        "intermediate_size={}, 1 and 0",
        size, shared, skipped, out.intermediate_size);
  }
  out.moe.shared_intermediate_size = out.intermediate_size;
  set_hunyuan_moe(out);
  return out;
}

Result<ModelConfig> read_hunyuan_moe_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader));
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_gguf_moe(reader, out, "expert_feed_forward_length"));
  QUIRE_ASSIGN_OR_RETURN(out.moe.shared_intermediate_size,
                         reader.integer("expert_shared_feed_forward_length", 1, 1 << 22));
  set_hunyuan_moe(out);
  return out;
}

Result<std::unique_ptr<Model>> build_hunyuan(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder(hunyuan_shape(), config, num_positions, loader);
}

Result<std::unique_ptr<Model>> build_hunyuan_moe(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  DecoderShape shape = hunyuan_shape();
  shape.feed_forward = sparse_or_dense;
  return build_decoder(shape, config, num_positions, loader);
}

}  // namespace quire::models
