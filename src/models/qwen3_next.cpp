#include "models/qwen3_next.h"

#include <array>
#include <string_view>

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "models/moe_family.h"
#include "models/qwen_vl.h"
#include "nn/gated_delta_net.h"

namespace quire::models {
namespace {

constexpr int64_t kAttentionInterval = 4;  // one layer of so many has attention, where the configuration does not say

// One layer of `interval` has attention, the last of them.
void set_attention_interval(int64_t interval, ModelConfig& out) {
  out.recurrent_layers.resize(static_cast<size_t>(out.num_layers));
  for (int32_t i = 0; i < out.num_layers; ++i) out.recurrent_layers[static_cast<size_t>(i)] = (i + 1) % interval != 0;
}

constexpr DeltaNetConfig kUsualDeltaNet{
    .num_key_heads = 16, .num_value_heads = 32, .key_head_dim = 128, .value_head_dim = 128, .conv_kernel = 4};

// "layer_types", or "full_attention_interval".
Status read_layer_types(const boost::json::object& config, ModelConfig& out) {
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(const int64_t interval,
                         reader.integer_or("full_attention_interval", kAttentionInterval, 1, 1 << 20));
  set_attention_interval(interval, out);
  constexpr std::array<std::string_view, 1> kRecurrent = {"linear_attention"};
  constexpr std::array<std::string_view, 1> kAttention = {"full_attention"};
  if (!reader.has("layer_types")) return {};
  QUIRE_ASSIGN_OR_RETURN(out.recurrent_layers,
                         read_recurrent_layers(config, "layer_types", out.num_layers, kRecurrent, kAttention));
  return {};
}

// usual_kv_heads: where the configuration does not say.
Result<ModelConfig> read_hybrid(const boost::json::object& config, const boost::json::object& generation,
                                int64_t usual_kv_heads) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation,
                                                              {.num_kv_heads = usual_kv_heads,
                                                               .head_dim = 256,
                                                               .max_position = 32768,
                                                               .rotary_share = 0.25,
                                                               .partial_rotary = true}));
  out.norm_weight_offset = 1;
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(const bool gate, reader.boolean_or("attn_output_gate", true));
  if (!gate) return unimplemented("config: attn_output_gate is false; supported: true");
  QUIRE_RETURN_IF_ERROR(read_layer_types(config, out));
  QUIRE_RETURN_IF_ERROR(read_delta_net(config, kUsualDeltaNet, out));
  return out;
}

Status read_experts(const boost::json::object& config, const MoeDefaults& defaults, ModelConfig& out) {
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_moe(config, out, defaults));
  QUIRE_ASSIGN_OR_RETURN(out.moe.shared_intermediate_size,
                         reader.integer_or("shared_expert_intermediate_size", 512, 1, 1 << 22));
  out.moe.shared_gate = true;
  QUIRE_ASSIGN_OR_RETURN(out.moe.normalise, reader.boolean_or("norm_topk_prob", true));
  return {};
}

// The same numbers by llama.cpp's names. in_turns: the converter has put value heads of one key head apart.
Result<ModelConfig> read_gguf_hybrid(const GgufReader& reader, const GgufDecoder& decoder, bool in_turns) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, decoder));
  QUIRE_RETURN_IF_ERROR(read_gguf_next_layers(reader, 0, out));
  QUIRE_ASSIGN_OR_RETURN(const int64_t interval,
                         reader.integer_or("full_attention_interval", kAttentionInterval, 1, 1 << 20));
  set_attention_interval(interval, out);
  QUIRE_ASSIGN_OR_RETURN(const int64_t key_heads, reader.integer("ssm.group_count", 1, 1 << 16));
  QUIRE_ASSIGN_OR_RETURN(const int64_t value_heads, reader.integer("ssm.time_step_rank", 1, 1 << 16));
  QUIRE_ASSIGN_OR_RETURN(const int64_t key_dim, reader.integer("ssm.state_size", 1, ops::kMostRecurrenceKeyDim));
  QUIRE_ASSIGN_OR_RETURN(const int64_t values, reader.integer("ssm.inner_size", 1, 1 << 24));
  QUIRE_ASSIGN_OR_RETURN(const int64_t kernel, reader.integer("ssm.conv_kernel", 2, ops::kMostConvTokens));
  if (value_heads % key_heads != 0 || values % value_heads != 0 || values / value_heads > kMostHeadDim) {
    return invalid_argument(
        "metadata: {} value heads ({}), {} key heads ({}) and {} numbers of values ({}) make no heads: expected a "
        "multiple of the key heads, and whole heads of values up to {}",
        value_heads, reader.full("ssm.time_step_rank"), key_heads, reader.full("ssm.group_count"), values,
        reader.full("ssm.inner_size"), kMostHeadDim);
  }
  out.family = DeltaNetConfig{.num_key_heads = static_cast<int32_t>(key_heads),
                              .num_value_heads = static_cast<int32_t>(value_heads),
                              .key_head_dim = static_cast<int32_t>(key_dim),
                              .value_head_dim = static_cast<int32_t>(values / value_heads),
                              .conv_kernel = static_cast<int32_t>(kernel),
                              .heads_in_turns = in_turns};
  return out;
}

// Files of models that have experts alone may not say the size of a dense block.
Result<ModelConfig> read_gguf_hybrid_moe(const checkpoint::Checkpoint& checkpoint, bool in_turns) {
  constexpr std::string_view kExpertSize = "expert_feed_forward_length";
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_hybrid(reader, {.size_key = kExpertSize}, in_turns));
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_gguf_moe(reader, out, kExpertSize));
  QUIRE_ASSIGN_OR_RETURN(out.moe.shared_intermediate_size,
                         reader.integer_or("expert_shared_feed_forward_length", out.moe.intermediate_size, 1, 1 << 22));
  out.moe.shared_gate = true;
  out.moe.normalise = true;  // as of every file: the metadata does not say it
  return out;
}

std::unique_ptr<nn::SelfAttention> gated_attention(nn::Loader& loader, const std::string& prefix,
                                                   const ModelConfig& config, int32_t layer) {
  nn::AttentionConfig attention = attention_config({.qk_norm = nn::QkNorm::kHead}, config, layer);
  attention.output_gate = true;
  return std::make_unique<nn::Attention>(loader, prefix + "self_attn", attention);
}

std::unique_ptr<nn::SelfAttention> recurrent_or_attention(nn::Loader& loader, const std::string& prefix,
                                                          const ModelConfig& config, int32_t layer) {
  if (config.recurrent_layers[static_cast<size_t>(layer)]) {
    return std::make_unique<nn::GatedDeltaNet>(
        loader, prefix + "linear_attn",
        nn::GatedDeltaNetOptions{.sizes = std::get<DeltaNetConfig>(config.family),
                                 .hidden_size = config.hidden_size,
                                 .norm_eps = config.norm_eps});
  }
  return gated_attention(loader, prefix, config, layer);
}

}  // namespace

Status read_delta_net(const boost::json::object& config, const DeltaNetConfig& usual, ModelConfig& out) {
  const ConfigReader reader(config);
  const auto size = [&](const char* key, int64_t fallback, int64_t low, int64_t high) {
    return reader.integer_or(key, fallback, low, high);
  };
  QUIRE_ASSIGN_OR_RETURN(const int64_t key_heads, size("linear_num_key_heads", usual.num_key_heads, 1, 1 << 16));
  QUIRE_ASSIGN_OR_RETURN(const int64_t value_heads, size("linear_num_value_heads", usual.num_value_heads, 1, 1 << 16));
  QUIRE_ASSIGN_OR_RETURN(const int64_t key_dim,
                         size("linear_key_head_dim", usual.key_head_dim, 1, ops::kMostRecurrenceKeyDim));
  QUIRE_ASSIGN_OR_RETURN(const int64_t value_dim, size("linear_value_head_dim", usual.value_head_dim, 1, kMostHeadDim));
  QUIRE_ASSIGN_OR_RETURN(const int64_t kernel,
                         size("linear_conv_kernel_dim", usual.conv_kernel, 2, ops::kMostConvTokens));
  if (value_heads % key_heads != 0) {
    return invalid_argument("config: linear_num_value_heads={} is not a multiple of linear_num_key_heads={}",
                            value_heads, key_heads);
  }
  if (out.activation != Activation::kSilu) {
    return unimplemented("config: hidden_act of layers with linear attention; supported: silu");
  }
  out.family = DeltaNetConfig{.num_key_heads = static_cast<int32_t>(key_heads),
                              .num_value_heads = static_cast<int32_t>(value_heads),
                              .key_head_dim = static_cast<int32_t>(key_dim),
                              .value_head_dim = static_cast<int32_t>(value_dim),
                              .conv_kernel = static_cast<int32_t>(kernel)};
  return {};
}

Result<ModelConfig> read_qwen3_next_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_hybrid(config, generation, 2));
  out.architecture = "Qwen3NextForCausalLM";
  QUIRE_RETURN_IF_ERROR(read_experts(
      config, {.num_experts = 512, .experts_per_token = 10, .size_key = "moe_intermediate_size", .size = 512}, out));
  QUIRE_RETURN_IF_ERROR(read_qwen_sparse_layers(config, out));
  return out;
}

Result<ModelConfig> read_qwen3_5_config(const boost::json::object& whole, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(const boost::json::object config, text_of_qwen(whole));
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_hybrid(config, generation, 4));
  out.architecture = "Qwen3_5ForCausalLM";
  return out;
}

Result<ModelConfig> read_qwen3_5_moe_config(const boost::json::object& whole, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(boost::json::object config, text_of_qwen(whole));
  // There is no dense block.
  if (!config.contains("intermediate_size")) config["intermediate_size"] = 512;
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_hybrid(config, generation, 2));
  out.architecture = "Qwen3_5MoeForCausalLM";
  QUIRE_RETURN_IF_ERROR(read_experts(
      config, {.num_experts = 256, .experts_per_token = 8, .size_key = "moe_intermediate_size", .size = 512}, out));
  return out;
}

Result<ModelConfig> read_qwen3_next_gguf(const checkpoint::Checkpoint& checkpoint) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_hybrid_moe(checkpoint, /*in_turns=*/false));
  out.architecture = "Qwen3NextForCausalLM";
  return out;
}

Result<ModelConfig> read_qwen3_5_gguf(const checkpoint::Checkpoint& checkpoint) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_hybrid(GgufReader(checkpoint), {}, /*in_turns=*/true));
  out.architecture = "Qwen3_5ForCausalLM";
  return out;
}

Result<ModelConfig> read_qwen3_5_moe_gguf(const checkpoint::Checkpoint& checkpoint) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_hybrid_moe(checkpoint, /*in_turns=*/true));
  out.architecture = "Qwen3_5MoeForCausalLM";
  return out;
}

DecoderShape gated_attention_shape(const ModelConfig& config) {
  DecoderShape shape{.attention = gated_attention};
  if (config.moe.num_experts > 0) shape.feed_forward = sparse_or_dense;
  return shape;
}

Result<std::unique_ptr<Model>> build_qwen3_next(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  DecoderShape shape = gated_attention_shape(config);
  shape.attention = recurrent_or_attention;
  find_text_model(loader, shape);
  shape.others.push_back("mtp.");  // the layer that predicts further tokens, and in GGUF files:
  const std::vector<std::string> next_layers = prefixes_of_next_layers(config);
  shape.others.insert(shape.others.end(), next_layers.begin(), next_layers.end());
  return build_decoder(shape, config, num_positions, loader);
}

}  // namespace quire::models
