#include "models/deepseek.h"

#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/moe_family.h"
#include "nn/latent_attention.h"

namespace quire::models {
namespace {

// What V2 and V3 take where their configurations are silent.
struct DeepseekDefaults {
  int64_t max_position;
  int64_t query_rank;
  int64_t num_experts;
  int64_t experts_per_token;  // 0: the key must be there
  int64_t expert_size;
  int64_t shared_experts;
  int64_t first_dense;
  double routed_scale;
  int64_t next_layers;
};

// A key that the reference has no other behaviour for.
Status expect(const ConfigReader& reader, std::string_view key, std::string_view only) {
  QUIRE_ASSIGN_OR_RETURN(const std::string found, reader.text_or(key, only));
  if (found == only) return {};
  return unimplemented("config: {} \"{}\" is not supported for this architecture yet; supported: {}", key, found, only);
}

Status read_latent(const ConfigReader& reader, int64_t query_rank, ModelConfig& out) {
  constexpr int64_t kMost = 1 << 16;
  LatentAttentionConfig& latent = out.latent;
  // null says "none"; silence the default.
  if (reader.has("q_lora_rank") || !reader.mentions("q_lora_rank")) {
    QUIRE_ASSIGN_OR_RETURN(latent.query_rank, reader.integer_or("q_lora_rank", query_rank, 1, kMost));
  }
  QUIRE_ASSIGN_OR_RETURN(latent.kv_rank, reader.integer_or("kv_lora_rank", 512, 1, 1024));
  QUIRE_ASSIGN_OR_RETURN(const int64_t nope, reader.integer_or("qk_nope_head_dim", 128, 1, 1024));
  QUIRE_ASSIGN_OR_RETURN(const int64_t rope, reader.integer_or("qk_rope_head_dim", 64, 2, 1024));
  QUIRE_ASSIGN_OR_RETURN(const int64_t value, reader.integer_or("v_head_dim", 128, 1, 1024));
  if ((latent.kv_rank + rope) % 2 != 0 || rope % 2 != 0 || latent.kv_rank + rope > 1024) {
    return invalid_argument("config: kv_lora_rank {} and qk_rope_head_dim {}: expected even numbers, 1024 together",
                            latent.kv_rank, rope);
  }
  latent.nope_head_dim = static_cast<int32_t>(nope);
  latent.rope_head_dim = static_cast<int32_t>(rope);
  latent.value_head_dim = static_cast<int32_t>(value);
  return {};
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

Status read_experts(const boost::json::object& config, const DeepseekDefaults& defaults, ModelConfig& out) {
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_moe(config, out,
                                           {.num_experts = defaults.num_experts,
                                            .experts_per_token = defaults.experts_per_token,
                                            .size_key = "moe_intermediate_size",
                                            .size = defaults.expert_size}));
  MoeConfig& moe = out.moe;
  QUIRE_ASSIGN_OR_RETURN(
      const int64_t shared,
      reader.integer_or("n_shared_experts", reader.mentions("n_shared_experts") ? 0 : defaults.shared_experts, 0,
                        1 << 16));
  moe.shared_intermediate_size = shared * moe.intermediate_size;
  QUIRE_ASSIGN_OR_RETURN(moe.scale, reader.number_or("routed_scaling_factor", defaults.routed_scale));
  QUIRE_ASSIGN_OR_RETURN(const int64_t first_sparse,
                         reader.integer_or("first_k_dense_replace", defaults.first_dense, 0, 1 << 20));
  QUIRE_ASSIGN_OR_RETURN(const int64_t step, reader.integer_or("moe_layer_freq", 1, 1, 1 << 20));
  for (int32_t layer = 0; layer < out.num_layers; ++layer)
    moe.sparse_layers[static_cast<size_t>(layer)] = layer >= first_sparse && layer % step == 0;
  return {};
}

Status read_groups(const ConfigReader& reader, int64_t groups, int64_t kept, MoeConfig& moe) {
  QUIRE_ASSIGN_OR_RETURN(groups, reader.integer_or("n_group", groups, 1, moe.num_experts));
  QUIRE_ASSIGN_OR_RETURN(kept, reader.integer_or("topk_group", kept, 1, groups));
  moe.num_groups = static_cast<int32_t>(groups);
  moe.groups_per_token = static_cast<int32_t>(kept);
  return check_groups(moe);
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
                         read_decoder_config(adjusted, generation, {.max_position = defaults.max_position}));
  QUIRE_RETURN_IF_ERROR(read_latent(reader, defaults.query_rank, out));
  out.attention_scale = attention_scale(out);
  out.head_dim = static_cast<int32_t>(out.latent.kv_rank + out.latent.rope_head_dim);
  out.values_are_keys = true;
  QUIRE_ASSIGN_OR_RETURN(const int64_t next_layers,
                         reader.integer_or("num_nextn_predict_layers", defaults.next_layers, 0, 64));
  out.num_next_layers = static_cast<int32_t>(next_layers);
  QUIRE_RETURN_IF_ERROR(read_experts(config, defaults, out));
  return out;
}

}  // namespace

Result<ModelConfig> read_deepseek_v2_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_deepseek(config, generation,
                                                        {.max_position = 2048,
                                                         .query_rank = 1536,
                                                         .num_experts = 64,
                                                         .experts_per_token = 0,
                                                         .expert_size = 1407,
                                                         .shared_experts = 2,
                                                         .first_dense = 0,
                                                         .routed_scale = 1.0,
                                                         .next_layers = 0}));
  out.architecture = "DeepseekV2ForCausalLM";
  out.rope.interleaved = true;
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
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_deepseek(config, generation,
                                                        {.max_position = 4096,
                                                         .query_rank = 1536,
                                                         .num_experts = 256,
                                                         .experts_per_token = 8,
                                                         .expert_size = 2048,
                                                         .shared_experts = 1,
                                                         .first_dense = 3,
                                                         .routed_scale = 2.5,
                                                         .next_layers = 1}));
  out.architecture = "DeepseekV3ForCausalLM";
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(out.rope.interleaved, reader.boolean_or("rope_interleave", true));
  QUIRE_RETURN_IF_ERROR(expect(reader, "scoring_func", "sigmoid"));
  QUIRE_RETURN_IF_ERROR(expect(reader, "topk_method", "noaux_tc"));
  out.moe.score = RouterScore::kSigmoid;
  out.moe.correction_bias = true;
  out.moe.group_score = GroupScore::kSumOfBestTwo;
  QUIRE_ASSIGN_OR_RETURN(out.moe.normalise, reader.boolean_or("norm_topk_prob", true));
  QUIRE_RETURN_IF_ERROR(read_groups(reader, 8, 4, out.moe));
  return out;
}

Result<std::unique_ptr<Model>> build_deepseek(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
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
  // Layers that predict the tokens after the next (DeepSeek-AI, 2024, section 2.2) follow the model's own; what GGUF
  // has no other name for keeps the stored one.
  std::vector<std::string> next_layers;
  for (int32_t layer = config.num_layers; layer < config.num_layers + config.num_next_layers; ++layer) {
    next_layers.push_back(fmt::format("model.layers.{}.", layer));
    next_layers.push_back(fmt::format("blk.{}.", layer));
  }
  return build_decoder(
      {.feed_forward = sparse_or_dense, .attention = attention, .others = {next_layers.begin(), next_layers.end()}},
      config, num_positions, loader);
}

}  // namespace quire::models
