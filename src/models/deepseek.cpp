#include "models/deepseek.h"

#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/text_quote.h"
#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "models/layer_head.h"
#include "models/moe_family.h"
#include "nn/latent_attention.h"

namespace quire::models {
namespace {

// What V2, V3 and GLM-4.7 Flash take where their configurations are silent.
struct DeepseekDefaults {
  int64_t max_position;
  double norm_eps = 1e-6;
  int64_t query_rank;
  int64_t nope_head_dim = 128;
  int64_t value_head_dim = 128;
  RoutedMoeDefaults experts;
  int64_t next_layers;
};

constexpr DeepseekDefaults kV2{.max_position = 2048,
                               .query_rank = 1536,
                               .experts = {.num_experts = 64, .size = 1407, .num_shared = 2},
                               .next_layers = 0};
constexpr DeepseekDefaults kV3{
    .max_position = 4096,
    .query_rank = 1536,
    .experts =
        {.num_experts = 256, .experts_per_token = 8, .size = 2048, .num_shared = 1, .first_sparse = 3, .scale = 2.5},
    .next_layers = 1};

constexpr DeepseekDefaults kGlm4Lite{
    .max_position = 202752,
    .norm_eps = 1e-5,
    .query_rank = 768,
    .nope_head_dim = 192,
    .value_head_dim = 256,
    .experts =
        {.num_experts = 64, .experts_per_token = 4, .size = 1536, .num_shared = 1, .first_sparse = 1, .scale = 1.8},
    .next_layers = 1};

constexpr DeepseekDefaults kMistral4{
    .max_position = 1048576,
    .query_rank = 1024,
    .nope_head_dim = 64,
    .experts = {.num_experts = 128, .experts_per_token = 4, .size = 2048, .num_shared = 1},
    .next_layers = 0};

void set_mistral4(ModelConfig& out) {
  out.architecture = "Mistral4ForCausalLM";
  out.rope.interleaved = true;
  out.moe.group_score = GroupScore::kSumOfBestTwo;
}

void set_v2(ModelConfig& out) {
  out.architecture = "DeepseekV2ForCausalLM";
  out.rope.interleaved = true;
}

void set_v3(ModelConfig& out) {
  out.architecture = "DeepseekV3ForCausalLM";
  out.rope.interleaved = true;
  set_sigmoid_router(out.moe);
}

// A key that the reference has no other behaviour for.
Status expect(const ConfigReader& reader, std::string_view key, std::string_view only) {
  QUIRE_ASSIGN_OR_RETURN(const std::string found, reader.text_or(key, only));
  if (found == only) return {};
  return unimplemented("config: {} \"{}\" is not supported for this architecture yet; supported: {}", key, found, only);
}

// REQUIRES: kv_rank is set.
Status set_latent_heads(int64_t nope, int64_t rope, int64_t value, LatentAttentionConfig& latent) {
  if ((latent.kv_rank + rope) % 2 != 0 || rope % 2 != 0 || latent.kv_rank + rope > kMostHeadDim) {
    return invalid_argument("config: kv_lora_rank {} and qk_rope_head_dim {}: expected even numbers, 1024 together",
                            latent.kv_rank, rope);
  }
  latent.nope_head_dim = static_cast<int32_t>(nope);
  latent.rope_head_dim = static_cast<int32_t>(rope);
  latent.value_head_dim = static_cast<int32_t>(value);
  return {};
}

Status read_latent(const ConfigReader& reader, const DeepseekDefaults& defaults, ModelConfig& out) {
  constexpr int64_t kMost = 1 << 16;
  LatentAttentionConfig& latent = out.latent;
  // null says "none"; silence the default.
  if (reader.has("q_lora_rank") || !reader.mentions("q_lora_rank")) {
    QUIRE_ASSIGN_OR_RETURN(latent.query_rank, reader.integer_or("q_lora_rank", defaults.query_rank, 1, kMost));
  }
  QUIRE_ASSIGN_OR_RETURN(latent.kv_rank, reader.integer_or("kv_lora_rank", 512, 1, 1024));
  QUIRE_ASSIGN_OR_RETURN(const int64_t nope, reader.integer_or("qk_nope_head_dim", defaults.nope_head_dim, 1, 1024));
  QUIRE_ASSIGN_OR_RETURN(const int64_t rope, reader.integer_or("qk_rope_head_dim", 64, 2, 1024));
  QUIRE_ASSIGN_OR_RETURN(const int64_t value, reader.integer_or("v_head_dim", defaults.value_head_dim, 1, 1024));
  return set_latent_heads(nope, rope, value, latent);
}

// Scores are scaled by 1 / sqrt of a query's size, and with yarn by the square of its mscale_all_dim's factor.
double attention_scale(const ModelConfig& model) {
  const double scale = 1.0 / std::sqrt(model.latent.nope_head_dim + model.latent.rope_head_dim);
  if (model.rope.scaling == RopeScaling::kNone || model.rope.mscale_all_dim == 0 || model.rope.factor <= 1) {
    return scale;
  }
  const double factor = 0.1 * model.rope.mscale_all_dim * std::log(model.rope.factor) + 1.0;
  return scale * factor * factor;
}

// What follows from the latent attention. Until here the heads are what rotates of the cache.
void set_latent(ModelConfig& out) {
  out.attention_scale = attention_scale(out);
  out.head_dim = static_cast<int32_t>(out.latent.kv_rank + out.latent.rope_head_dim);
}

Result<ModelConfig> read_deepseek(const boost::json::object& config, const boost::json::object& generation,
                                  const DeepseekDefaults& defaults) {
  // The reader's heads are what the cache holds, its head_dim what rotates.
  boost::json::object adjusted = config;
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(const int64_t rope_dim, reader.integer_or("qk_rope_head_dim", 64, 2, 1024));
  adjusted["head_dim"] = rope_dim;
  adjusted["num_key_value_heads"] = 1;
  adjusted.erase("partial_rotary_factor");  // all of it rotates
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out,
                         read_decoder_config(adjusted, generation,
                                             {.max_position = defaults.max_position, .norm_eps = defaults.norm_eps}));
  QUIRE_RETURN_IF_ERROR(read_latent(reader, defaults, out));
  set_latent(out);
  QUIRE_ASSIGN_OR_RETURN(const int64_t next_layers,
                         reader.integer_or("num_nextn_predict_layers", defaults.next_layers, 0, 64));
  out.num_next_layers = static_cast<int32_t>(next_layers);
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_routed_moe(config, out, defaults.experts));
  return out;
}

}  // namespace

Result<ModelConfig> read_deepseek_v2_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_deepseek(config, generation, kV2));
  set_v2(out);
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, reader.boolean_or("mlp_bias", false));
  QUIRE_RETURN_IF_ERROR(expect(reader, "scoring_func", "softmax"));
  QUIRE_ASSIGN_OR_RETURN(const bool normalise, reader.boolean_or("norm_topk_prob", false));
  if (normalise) {
    return unimplemented(
        "config: norm_topk_prob is true, on which implementations of DeepSeek V2 differ; supported: false");
  }
  QUIRE_ASSIGN_OR_RETURN(const std::string method, reader.text_or("topk_method", "greedy"));
  if (method == "group_limited_greedy") {
    QUIRE_RETURN_IF_ERROR(read_groups(reader, 1, 1, out.moe));
  } else if (method != "greedy") {
    return unimplemented("config: topk_method \"{}\" is not supported yet; supported: greedy, group_limited_greedy",
                         method);
  }
  return out;
}

Result<ModelConfig> read_deepseek_v3_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_deepseek(config, generation, kV3));
  set_v3(out);
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(out.rope.interleaved, reader.boolean_or("rope_interleave", true));
  QUIRE_RETURN_IF_ERROR(expect(reader, "scoring_func", "sigmoid"));
  QUIRE_RETURN_IF_ERROR(expect(reader, "topk_method", "noaux_tc"));
  QUIRE_ASSIGN_OR_RETURN(out.moe.normalise, reader.boolean_or("norm_topk_prob", true));
  QUIRE_RETURN_IF_ERROR(read_groups(reader, 8, 4, out.moe));
  return out;
}

Result<ModelConfig> read_glm4_moe_lite_config(const boost::json::object& config,
                                              const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_deepseek(config, generation, kGlm4Lite));
  set_v3(out);
  out.architecture = "Glm4MoeLiteForCausalLM";
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(out.rope.interleaved, reader.boolean_or("rope_interleave", true));
  QUIRE_ASSIGN_OR_RETURN(out.moe.normalise, reader.boolean_or("norm_topk_prob", true));
  QUIRE_RETURN_IF_ERROR(read_groups(reader, 1, 1, out.moe));
  QUIRE_RETURN_IF_ERROR(read_mlp_layer_types(config, out.moe));
  return out;
}

namespace {

// With what the reference's class takes where the rope and the latent are not told. The share of a head that rotates
// repeats the sizes of its parts.
Result<boost::json::object> complete_mistral4(const boost::json::object& config) {
  boost::json::object complete = config;
  const ConfigReader reader(config);
  if (!reader.has("kv_lora_rank")) complete["kv_lora_rank"] = 256;
  if (!reader.has("rope_parameters") && !reader.has("rope_scaling")) {
    complete["rope_parameters"] = {
        {"rope_type", "yarn"},        {"rope_theta", 1e4}, {"factor", 128.0},
        {"mscale_all_dim", 1.0},      {"mscale", 1.0},     {"original_max_position_embeddings", 8192},
        {"llama_4_scaling_beta", 0.1}};
  }
  QUIRE_ASSIGN_OR_RETURN(const int64_t nope,
                         reader.integer_or("qk_nope_head_dim", kMistral4.nope_head_dim, 1, kMostHeadDim));
  QUIRE_ASSIGN_OR_RETURN(const int64_t rope, reader.integer_or("qk_rope_head_dim", 64, 2, kMostHeadDim));
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    boost::json::value* entry = complete.if_contains(key);
    if (entry == nullptr || !entry->is_object()) continue;
    const double own = static_cast<double>(rope) / static_cast<double>(nope + rope);
    QUIRE_ASSIGN_OR_RETURN(const double share,
                           ConfigReader(entry->get_object()).number_or("partial_rotary_factor", own));
    if (std::abs(share - own) * static_cast<double>(nope + rope) >= 1) {
      return invalid_argument("config: partial_rotary_factor is {}, expected {}: {} of {} numbers of a head", share,
                              own, rope, nope + rope);
    }
    entry->get_object().erase("partial_rotary_factor");
  }
  return complete;
}

}  // namespace

Result<ModelConfig> read_mistral4_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(const boost::json::object complete, complete_mistral4(config));
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_deepseek(complete, generation, kMistral4));
  set_mistral4(out);
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(out.rope.interleaved, reader.boolean_or("rope_interleave", true));
  QUIRE_ASSIGN_OR_RETURN(out.moe.normalise, reader.boolean_or("norm_topk_prob", true));
  QUIRE_RETURN_IF_ERROR(read_groups(reader, 1, 1, out.moe));
  QUIRE_RETURN_IF_ERROR(read_query_growth(complete, out));
  return out;
}

namespace {

Result<int64_t> in_range(std::string_view what, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return value;
  return invalid_argument("metadata: {} is {}, expected an integer from {} to {}", what, value, low, high);
}

// Sizes of heads are those of queries before keys are taken to their side: under "_mla" where the file has both.
Status read_gguf_latent(const GgufReader& reader, LatentAttentionConfig& latent) {
  const auto either = [&reader](std::string_view key, std::string_view older) {
    return reader.metadata().integer(reader.full(reader.has(key) ? key : older));
  };
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> key, either("attention.key_length_mla", "attention.key_length"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> value,
                         either("attention.value_length_mla", "attention.value_length"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> rotary,
                         reader.metadata().integer(reader.full("rope.dimension_count")));
  if (!key || !value || !rotary) {
    return data_loss("metadata of latent attention: expected \"{}\", \"{}\" and \"{}\"",
                     reader.full("attention.key_length"), reader.full("attention.value_length"),
                     reader.full("rope.dimension_count"));
  }
  if (*rotary < 0 || *rotary > *key) {
    return data_loss("metadata \"{}\" is {}, expected 0 to the size of a head, {}", reader.full("rope.dimension_count"),
                     *rotary, *key);
  }
  QUIRE_ASSIGN_OR_RETURN(latent.kv_rank, reader.integer("attention.kv_lora_rank", 1, kMostHeadDim));
  if (reader.has("attention.q_lora_rank")) {
    QUIRE_ASSIGN_OR_RETURN(latent.query_rank, reader.integer("attention.q_lora_rank", 1, 1 << 16));
  }
  QUIRE_ASSIGN_OR_RETURN(const int64_t rope_dim, in_range("what rotates of a head", *rotary, 2, kMostHeadDim));
  QUIRE_ASSIGN_OR_RETURN(const int64_t nope_dim, in_range("the rest of a head", *key - *rotary, 1, kMostHeadDim));
  QUIRE_ASSIGN_OR_RETURN(const int64_t value_dim, in_range("the size of a value", *value, 1, kMostHeadDim));
  return set_latent_heads(nope_dim, rope_dim, value_dim, latent);
}

Result<ModelConfig> read_deepseek_gguf(const GgufReader& reader, const DeepseekDefaults& defaults) {
  LatentAttentionConfig latent;
  QUIRE_RETURN_IF_ERROR(read_gguf_latent(reader, latent));
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, {.cached_head_dim = latent.rope_head_dim}));
  out.latent = latent;
  set_latent(out);
  QUIRE_RETURN_IF_ERROR(read_gguf_next_layers(reader, defaults.next_layers, out));
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_gguf_routed_moe(reader, out, defaults.experts));
  return out;
}

}  // namespace

Result<ModelConfig> read_deepseek_v2_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_deepseek_gguf(reader, kV2));
  set_v2(out);
  out.mlp_bias = reader.has_tensor_that_ends_with(".mlp.up_proj.bias");
  if (out.moe.normalise) {
    return unimplemented("metadata \"{}\" is true, on which implementations of DeepSeek V2 differ; supported: false",
                         reader.full("expert_weights_norm"));
  }
  // One group or none is the choice among all experts.
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> groups,
                         reader.metadata().integer(reader.full("expert_group_count")));
  if (groups.value_or(1) > 1) QUIRE_RETURN_IF_ERROR(read_gguf_groups(reader, out.moe));
  return out;
}

Result<ModelConfig> read_deepseek_v3_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_deepseek_gguf(reader, kV3));
  set_v3(out);
  QUIRE_RETURN_IF_ERROR(read_gguf_groups(reader, out.moe));
  return out;
}

Result<ModelConfig> read_mistral4_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_deepseek_gguf(reader, kMistral4));
  set_mistral4(out);
  QUIRE_RETURN_IF_ERROR(read_gguf_groups(reader, out.moe));
  QUIRE_RETURN_IF_ERROR(read_gguf_query_growth(reader, out));
  return out;
}

DecoderShape deepseek_shape() {
  const auto attention = [](nn::Loader& from, const std::string& prefix, const ModelConfig& model,
                            int32_t) -> std::unique_ptr<nn::SelfAttention> {
    // The norms of the ranks have an epsilon of their own, which no configuration sets.
    return std::make_unique<nn::LatentAttention>(
        from, prefix + "self_attn",
        nn::LatentAttentionOptions{.sizes = model.latent,
                                   .hidden_size = model.hidden_size,
                                   .num_heads = model.num_heads,
                                   .bias = model.attention_bias,
                                   .norm_eps = 1e-6,
                                   .scale = static_cast<float>(model.attention_scale)});
  };
  return {.feed_forward = sparse_or_dense, .attention = attention};
}

Result<std::unique_ptr<Model>> build_deepseek(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  DecoderShape shape = deepseek_shape();
  const std::vector<std::string> next_layers = prefixes_of_next_layers(config);
  shape.others = {next_layers.begin(), next_layers.end()};
  return build_decoder(shape, config, num_positions, loader);
}

}  // namespace quire::models
