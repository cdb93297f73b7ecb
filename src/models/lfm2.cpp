#include "models/lfm2.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "models/moe_family.h"
#include "nn/gated_short_conv.h"

namespace quire::models {
namespace {

constexpr int64_t kKernel = 3;               // tokens of the convolution, where the configuration does not say
constexpr int64_t kMostInnerSize = 1 << 22;  // of a feed-forward block

// Which layers are recurrent; none of them: left empty, as for any other decoder.
void set_recurrent(std::vector<bool> recurrent, ModelConfig& out) {
  if (std::ranges::find(recurrent, true) != recurrent.end()) out.recurrent_layers = std::move(recurrent);
}

// "layer_types", or the older "full_attn_idxs" of those that have attention, which are all where neither is there.
Status read_lfm2_layers(const boost::json::object& config, ModelConfig& out) {
  const ConfigReader reader(config);
  std::vector<bool> recurrent(static_cast<size_t>(out.num_layers), false);
  if (reader.has("layer_types")) {
    constexpr std::array<std::string_view, 1> kRecurrent = {"conv"};
    constexpr std::array<std::string_view, 1> kAttention = {"full_attention"};
    QUIRE_ASSIGN_OR_RETURN(recurrent,
                           read_recurrent_layers(config, "layer_types", out.num_layers, kRecurrent, kAttention));
  } else if (reader.has("full_attn_idxs")) {
    QUIRE_ASSIGN_OR_RETURN(const std::vector<double> with_attention, reader.numbers("full_attn_idxs"));
    recurrent.assign(recurrent.size(), true);
    for (const double layer : with_attention) {
      if (layer < 0 || layer >= out.num_layers || layer != std::floor(layer)) {
        return invalid_argument("config: full_attn_idxs has {}, expected integers from 0 to {}", layer,
                                out.num_layers - 1);
      }
      recurrent[static_cast<size_t>(layer)] = false;
    }
  }
  set_recurrent(std::move(recurrent), out);
  return {};
}

// The size of a feed-forward block as the reference works it out: two thirds of the stated one, times a factor, rounded
// up. Without a factor, null, it is neither multiplied nor rounded.
Result<int64_t> adjusted_inner_size(const ConfigReader& reader, int64_t stated) {
  QUIRE_ASSIGN_OR_RETURN(const bool adjusts, reader.boolean_or("block_auto_adjust_ff_dim", true));
  if (!adjusts) return stated;
  const int64_t size = 2 * stated / 3;
  if (reader.mentions("block_ffn_dim_multiplier") && !reader.has("block_ffn_dim_multiplier")) return size;
  QUIRE_ASSIGN_OR_RETURN(const double factor, reader.number_or("block_ffn_dim_multiplier", 1));
  QUIRE_ASSIGN_OR_RETURN(const int64_t multiple, reader.integer_or("block_multiple_of", 256, 1, kMostInnerSize));
  const double multiplied = factor * static_cast<double>(size);
  if (!(multiplied >= 1 && multiplied <= static_cast<double>(kMostInnerSize))) {
    return invalid_argument("config: block_ffn_dim_multiplier {} of {} is {}, expected 1 to {}", factor, size,
                            multiplied, kMostInnerSize);
  }
  return (static_cast<int64_t>(multiplied) + multiple - 1) / multiple * multiple;
}

Result<ModelConfig> read_lfm2_decoder(boost::json::object config, const boost::json::object& generation,
                                      int64_t inner_size) {
  // The class's own names of what the others have, too.
  if (config.contains("tie_embedding")) config["tie_word_embeddings"] = config["tie_embedding"];
  config["intermediate_size"] = inner_size;
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation,
                                                              {.num_kv_heads = 8,
                                                               .max_position = 128000,
                                                               .norm_eps_key = "norm_eps",
                                                               .norm_eps = 1e-5,
                                                               .rope_theta = 1e6,
                                                               .tie_word_embeddings = true}));
  if (out.attention_bias) return unimplemented("config: attention_bias is true; supported: false");
  if (out.activation != Activation::kSilu) return unimplemented("config: hidden_act of LFM2; supported: silu");
  const ConfigReader reader(config);
  QUIRE_RETURN_IF_ERROR(read_lfm2_layers(config, out));
  QUIRE_ASSIGN_OR_RETURN(const int64_t kernel, reader.integer_or("conv_L_cache", kKernel, 2, ops::kMostConvTokens));
  QUIRE_ASSIGN_OR_RETURN(const bool bias, reader.boolean_or("conv_bias", false));
  out.family = ShortConvConfig{.kernel = static_cast<int32_t>(kernel), .bias = bias};
  return out;
}

Result<ModelConfig> read_lfm2_gguf_decoder(const GgufReader& reader) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, {.recurrent_layers = true}));
  QUIRE_ASSIGN_OR_RETURN(const bool causal, reader.boolean_or("attention.causal", true));
  if (!causal) return unimplemented("metadata \"{}\" is false; supported: true", reader.full("attention.causal"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, reader.window());
  if (window) {
    return unimplemented("metadata \"{}\" is {}; supported: none", reader.full("attention.sliding_window"), *window);
  }
  QUIRE_ASSIGN_OR_RETURN(const int64_t kernel, reader.integer("shortconv.l_cache", 2, ops::kMostConvTokens));
  out.family = ShortConvConfig{.kernel = static_cast<int32_t>(kernel),
                               .bias = reader.has_tensor_that_ends_with(".conv.conv.bias")};
  return out;
}

// Sigmoids of each expert by itself, in one group.
void set_lfm2_router(bool correction_bias, int64_t num_dense_layers, MoeConfig& moe) {
  moe.score = RouterScore::kSigmoid;
  moe.sum_offset = 1e-6;
  moe.correction_bias = correction_bias;
  for (size_t i = 0; i < moe.sparse_layers.size(); ++i)
    moe.sparse_layers[i] = static_cast<int64_t>(i) >= num_dense_layers;
}

std::unique_ptr<nn::SelfAttention> conv_or_attention(nn::Loader& loader, const std::string& prefix,
                                                     const ModelConfig& config, int32_t layer) {
  if (!config.recurrent_layers.empty() && config.recurrent_layers[static_cast<size_t>(layer)]) {
    return std::make_unique<nn::GatedShortConv>(loader, prefix + "conv", std::get<ShortConvConfig>(config.family),
                                                config.hidden_size);
  }
  nn::AttentionConfig attention = attention_config({.qk_norm = nn::QkNorm::kHead}, config, layer);
  attention.query_norm_name = "q_layernorm";
  attention.key_norm_name = "k_layernorm";
  attention.output_name = "out_proj";
  return std::make_unique<nn::Attention>(loader, prefix + "self_attn", attention);
}

std::unique_ptr<nn::FeedForward> lfm2_feed_forward(nn::Loader& loader, const std::string& prefix,
                                                   const ModelConfig& config, int32_t layer) {
  if (config.moe.num_experts > 0 && config.moe.sparse_layers[static_cast<size_t>(layer)])
    return sparse_or_dense(loader, prefix, config, layer);
  const std::string block = prefix + "feed_forward.";
  return std::make_unique<nn::GatedMlp>(loader,
                                        nn::GatedMlp::Parts{.gate_up = {{block + "w1", config.intermediate_size},
                                                                        {block + "w3", config.intermediate_size}},
                                                            .down = {block + "w2", config.hidden_size}},
                                        config.activation);
}

}  // namespace

Result<ModelConfig> read_lfm2_config(const boost::json::object& config, const boost::json::object& generation) {
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(int64_t inner_size, reader.integer_or("intermediate_size", 12288, 1, kMostInnerSize));
  QUIRE_ASSIGN_OR_RETURN(inner_size, reader.integer_or("block_ff_dim", inner_size, 1, kMostInnerSize));
  QUIRE_ASSIGN_OR_RETURN(inner_size, adjusted_inner_size(reader, inner_size));
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_lfm2_decoder(config, generation, inner_size));
  out.architecture = "Lfm2ForCausalLM";
  return out;
}

Result<ModelConfig> read_lfm2_moe_config(const boost::json::object& config, const boost::json::object& generation) {
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(const int64_t inner_size, reader.integer_or("intermediate_size", 7168, 1, kMostInnerSize));
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_lfm2_decoder(config, generation, inner_size));
  out.architecture = "Lfm2MoeForCausalLM";
  QUIRE_ASSIGN_OR_RETURN(
      out.moe,
      read_moe(config, out,
               {.num_experts = 32, .experts_per_token = 4, .size_key = "moe_intermediate_size", .size = 1792}));
  QUIRE_ASSIGN_OR_RETURN(const int64_t num_dense, reader.integer_or("num_dense_layers", 2, 0, 1 << 20));
  QUIRE_ASSIGN_OR_RETURN(const bool correction, reader.boolean_or("use_expert_bias", true));
  QUIRE_ASSIGN_OR_RETURN(out.moe.normalise, reader.boolean_or("norm_topk_prob", true));
  QUIRE_ASSIGN_OR_RETURN(out.moe.scale, reader.number_or("routed_scaling_factor", 1));
  set_lfm2_router(correction, num_dense, out.moe);
  return out;
}

Result<ModelConfig> read_lfm2_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_lfm2_gguf_decoder(reader));
  out.architecture = "Lfm2ForCausalLM";
  return out;
}

Result<ModelConfig> read_lfm2_moe_gguf(const checkpoint::Checkpoint& checkpoint) {
  constexpr int64_t kSigmoids = 2;
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_lfm2_gguf_decoder(reader));
  out.architecture = "Lfm2MoeForCausalLM";
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_gguf_moe(reader, out, "expert_feed_forward_length"));
  QUIRE_ASSIGN_OR_RETURN(const int64_t num_dense, reader.integer_or("leading_dense_block_count", 0, 0, 1 << 20));
  QUIRE_ASSIGN_OR_RETURN(const int64_t score, reader.integer_or("expert_gating_func", kSigmoids, 0, 1 << 20));
  if (score != kSigmoids) {
    return unimplemented("metadata \"{}\" is {}; supported: {} (sigmoid)", reader.full("expert_gating_func"), score,
                         kSigmoids);
  }
  // llama.cpp's graph does both of these whatever the file says, and its converter does not say.
  QUIRE_ASSIGN_OR_RETURN(out.moe.normalise, reader.boolean_or("expert_weights_norm", true));
  QUIRE_ASSIGN_OR_RETURN(out.moe.scale, reader.number_or("expert_weights_scale", 1));
  set_lfm2_router(reader.has_tensor_that_ends_with(".expert_bias.bias"), num_dense, out.moe);
  return out;
}

Result<std::unique_ptr<Model>> build_lfm2(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.before_attention = "operator_norm",
                        .before_mlp = "ffn_norm",
                        .after_layers = "embedding_norm",
                        .feed_forward = lfm2_feed_forward,
                        .attention = conv_or_attention},
                       config, num_positions, loader);
}

}  // namespace quire::models
