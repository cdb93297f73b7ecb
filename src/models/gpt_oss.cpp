#include "models/gpt_oss.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "models/moe_family.h"

namespace quire::models {
namespace {

// What the reference takes where the configuration says nothing of its rotary embedding.
boost::json::object with_rope(const boost::json::object& config) {
  boost::json::object whole = config;
  const ConfigReader reader(config);
  if (reader.has("rope_parameters") || reader.has("rope_scaling")) return whole;
  whole["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 32.0},    {"beta_fast", 32.0},
                              {"beta_slow", 1.0},    {"truncate", false}, {"original_max_position_embeddings", 4096}};
  return whole;
}

constexpr int32_t kGptOssWindow = 128;  // where the configuration does not say

constexpr auto kHasGptOssWindow = [](int32_t layer) { return layer % 2 == 0; };

void set_gpt_oss(ModelConfig& out) {
  out.architecture = "GptOssForCausalLM";
  out.moe.score = RouterScore::kSoftmaxOfChosen;
  out.moe.router_bias = true;
  out.moe.expert_bias = true;
  out.moe.clamp_alpha = 1.702;
  out.moe.clamp_limit = 7.0;
}

}  // namespace

Result<ModelConfig> read_gpt_oss_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(with_rope(config), generation,
                                                              {.num_kv_heads = 8,
                                                               .head_dim = 64,
                                                               .max_position = 131072,
                                                               .norm_eps = 1e-5,
                                                               .rope_theta = 150000.0,
                                                               .attention_bias = true}));
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config, kGptOssWindow));
  if (window) {
    QUIRE_RETURN_IF_ERROR(read_layer_windows(config, *window, kHasGptOssWindow, out));
  }
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_moe(config, out, {.num_experts = 128, .experts_per_token = 4}));
  set_gpt_oss(out);
  QUIRE_ASSIGN_OR_RETURN(out.moe.clamp_alpha, reader.number_or("swiglu_alpha", out.moe.clamp_alpha));
  QUIRE_ASSIGN_OR_RETURN(out.moe.clamp_limit, reader.number_or("swiglu_limit", out.moe.clamp_limit));
  if (out.moe.clamp_limit <= 0) {
    return invalid_argument("config: swiglu_limit is {}, expected more than 0", out.moe.clamp_limit);
  }
  return out;
}

Result<ModelConfig> read_gpt_oss_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  constexpr std::string_view kSize = "expert_feed_forward_length";
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, {.size_key = kSize}));
  QUIRE_ASSIGN_OR_RETURN(const int64_t window, reader.integer("attention.sliding_window", 0, int64_t{1} << 30));
  if (window > 0) set_layer_windows(static_cast<int32_t>(window), kHasGptOssWindow, out);
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_gguf_moe(reader, out, kSize));
  out.rope.truncate = false;  // as of every file: the metadata does not say it
  set_gpt_oss(out);
  return out;
}

Result<std::unique_ptr<Model>> build_gpt_oss(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  const auto experts = [](nn::Loader& from, const std::string& prefix, const ModelConfig& model,
                          int32_t) -> std::unique_ptr<nn::FeedForward> {
    return std::make_unique<nn::MoeBlock>(from, prefix,
                                          nn::MoeOptions{.moe = model.moe,
                                                         .hidden_size = model.hidden_size,
                                                         .activation = model.activation,
                                                         .stacks_transposed = true,
                                                         .stacks_interleaved = true});
  };
  return build_decoder({.sinks = true, .feed_forward = experts}, config, num_positions, loader);
}

}  // namespace quire::models
