#include "models/gguf_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "models/config_reader.h"
#include "nn/rotary.h"

namespace quire::models {

GgufReader::GgufReader(const checkpoint::Checkpoint& checkpoint)
    : checkpoint_(checkpoint), description_(*checkpoint.gguf()) {}

std::string GgufReader::full(std::string_view key) const {
  return fmt::format("{}.{}", description_.architecture, key);
}

Result<int64_t> GgufReader::integer(std::string_view key, int64_t low, int64_t high) const {
  const std::string name = full(key);
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> value, metadata().integer(name));
  if (!value) return data_loss("metadata \"{}\" is missing, expected an integer", name);
  if (*value < low || *value > high) {
    return invalid_argument("metadata \"{}\" is {}, expected an integer from {} to {}", name, *value, low, high);
  }
  return *value;
}

Result<int64_t> GgufReader::integer_or(std::string_view key, int64_t fallback, int64_t low, int64_t high) const {
  if (!has(key)) return fallback;
  return integer(key, low, high);
}

Result<std::vector<int64_t>> GgufReader::integers_of_layers(std::string_view key, int64_t layers, int64_t low,
                                                            int64_t high) const {
  const std::string name = full(key);
  if (!metadata().is_array(name)) {
    QUIRE_ASSIGN_OR_RETURN(const int64_t value, integer(key, low, high));
    return std::vector<int64_t>(static_cast<size_t>(layers), value);
  }
  QUIRE_ASSIGN_OR_RETURN(auto values, metadata().integers(name));
  if (std::ssize(*values) != layers) {
    return data_loss("metadata \"{}\" has {} entries, expected one for each of the {} layers", name, values->size(),
                     layers);
  }
  for (const int64_t value : *values) {
    if (value >= low && value <= high) continue;
    return invalid_argument("metadata \"{}\" holds {}, expected integers from {} to {}", name, value, low, high);
  }
  return *std::move(values);
}

Result<double> GgufReader::number(std::string_view key) const {
  const std::string name = full(key);
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> value, metadata().number(name));
  if (!value) return data_loss("metadata \"{}\" is missing, expected a number", name);
  if (!std::isfinite(*value)) {
    return invalid_argument("metadata \"{}\" is {}, expected a finite number", name, *value);
  }
  return *value;
}

Result<double> GgufReader::number_or(std::string_view key, double fallback) const {
  if (!has(key)) return fallback;
  return number(key);
}

Result<bool> GgufReader::boolean_or(std::string_view key, bool fallback) const {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<bool> value, metadata().boolean(full(key)));
  return value.value_or(fallback);
}

Result<std::string> GgufReader::text_or(std::string_view key, std::string_view fallback) const {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string_view> value, metadata().text(full(key)));
  return std::string(value.value_or(fallback));
}

Result<std::optional<int32_t>> GgufReader::window(std::optional<int32_t> fallback) const {
  constexpr std::string_view kKey = "attention.sliding_window";
  if (!has(kKey)) return fallback;
  QUIRE_ASSIGN_OR_RETURN(const int64_t window, integer(kKey, 0, int64_t{1} << 30));
  return window == 0 ? std::optional<int32_t>() : static_cast<int32_t>(window);
}

bool GgufReader::has_tensor_that_ends_with(std::string_view suffix) const {
  return std::ranges::any_of(checkpoint_.tensors(), [&](const auto& tensor) { return tensor.name.ends_with(suffix); });
}

namespace {

// Which layers have no heads of keys, and how many the others have: all as many; as queries where there is no other.
Result<int64_t> read_gguf_recurrent_layers(const GgufReader& reader, int64_t num_heads, ModelConfig& out) {
  constexpr std::string_view kKvHeads = "attention.head_count_kv";
  QUIRE_ASSIGN_OR_RETURN(const auto all, reader.integers_of_layers(kKvHeads, out.num_layers, 0, num_heads));
  const int64_t kv_heads = std::ranges::max(all);
  for (const int64_t of_layer : all) {
    if (of_layer == 0 || of_layer == kv_heads) continue;
    return unimplemented("metadata \"{}\" has {} and {}; supported: one number, and 0 for layers without attention",
                         reader.full(kKvHeads), kv_heads, of_layer);
  }
  if (std::ranges::find(all, 0) != all.end()) {
    for (const int64_t of_layer : all) out.recurrent_layers.push_back(of_layer == 0);
  }
  return kv_heads == 0 ? num_heads : kv_heads;
}

Status read_gguf_heads(const GgufReader& reader, const GgufDecoder& decoder, ModelConfig& out) {
  QUIRE_ASSIGN_OR_RETURN(const int64_t heads, reader.integer("attention.head_count", 1, 4096));
  int64_t kv_heads = 1;
  int64_t head_dim = decoder.cached_head_dim.value_or(0);
  if (!decoder.cached_head_dim) {
    constexpr std::string_view kKvHeads = "attention.head_count_kv";
    if (decoder.recurrent_layers) {
      QUIRE_ASSIGN_OR_RETURN(kv_heads, read_gguf_recurrent_layers(reader, heads, out));
    } else if (decoder.lists_layers && reader.has(kKvHeads)) {
      QUIRE_ASSIGN_OR_RETURN(const auto all, reader.integers_of_layers(kKvHeads, out.num_layers, 1, heads));
      kv_heads = all.front();
    } else {
      QUIRE_ASSIGN_OR_RETURN(kv_heads, reader.integer_or(kKvHeads, heads, 1, heads));
    }
    QUIRE_ASSIGN_OR_RETURN(head_dim,
                           reader.integer_or("attention.key_length", out.hidden_size / heads, 2, kMostHeadDim));
  }
  if (head_dim < 2 || head_dim > kMostHeadDim || head_dim % 2 != 0) {
    return invalid_argument("metadata: the size of a head is {}, expected an even number from 2 to {}", head_dim,
                            kMostHeadDim);
  }
  if (heads % kv_heads != 0) {
    return invalid_argument("metadata: \"{}\" {} is not a multiple of \"{}\" {}", reader.full("attention.head_count"),
                            heads, reader.full("attention.head_count_kv"), kv_heads);
  }
  out.num_heads = static_cast<int32_t>(heads);
  out.num_kv_heads = static_cast<int32_t>(kv_heads);
  out.head_dim = static_cast<int32_t>(head_dim);
  return {};
}

// Yarn (Peng et al., 2023). GGUF's factors multiply the 0.1 ln(factor) + 1 by which cos and sin are scaled;
// attention_factor is the whole product.
Status read_gguf_yarn(const GgufReader& reader, double factor, RopeConfig& rope) {
  if (reader.has("rope.scaling.yarn_ext_factor")) {
    QUIRE_ASSIGN_OR_RETURN(const double extrapolation, reader.number("rope.scaling.yarn_ext_factor"));
    if (extrapolation >= 0 && extrapolation != 1) {
      return unimplemented("metadata \"{}\" is {}, which is not supported yet; supported: 1",
                           reader.full("rope.scaling.yarn_ext_factor"), extrapolation);
    }
  }
  QUIRE_ASSIGN_OR_RETURN(rope.beta_fast, reader.number_or("rope.scaling.yarn_beta_fast", rope.beta_fast));
  QUIRE_ASSIGN_OR_RETURN(rope.beta_slow, reader.number_or("rope.scaling.yarn_beta_slow", rope.beta_slow));
  if (reader.has("rope.scaling.yarn_log_multiplier")) {
    QUIRE_ASSIGN_OR_RETURN(const double multiplier, reader.number("rope.scaling.yarn_log_multiplier"));
    rope.mscale = rope.mscale_all_dim = multiplier / 0.1;
  }
  const bool is_scaled = reader.has("rope.scaling.attn_factor") || reader.has("rope.scaling.yarn_attn_factor");
  QUIRE_ASSIGN_OR_RETURN(const double attention, reader.number_or("rope.scaling.attn_factor", 1));
  QUIRE_ASSIGN_OR_RETURN(const double yarn_attention, reader.number_or("rope.scaling.yarn_attn_factor", 1));
  if (is_scaled && factor > 0) rope.attention_factor = attention * yarn_attention * (0.1 * std::log(factor) + 1);
  return {};
}

// Phi-3's lists of divisors are tensors here. nullopt: there is none of that name.
Result<std::optional<std::vector<double>>> read_factors(const GgufReader& reader, std::string_view name) {
  const checkpoint::CheckpointTensor* tensor = reader.checkpoint().find(name);
  if (tensor == nullptr) return std::optional<std::vector<double>>();
  if (tensor->view.dtype != DType::kF32 || tensor->view.shape.rank() != 1) {
    return data_loss("tensor \"{}\" is {} {}, expected a list of F32", tensor->stored_name,
                     quire::name(tensor->view.dtype), tensor->view.shape.to_string());
  }
  std::vector<double> factors;
  for (int64_t i = 0; i < tensor->view.shape[0]; ++i) {
    float factor;
    std::memcpy(&factor, static_cast<const uint8_t*>(tensor->view.data) + i * 4, sizeof(factor));
    if (!std::isfinite(factor)) {
      return invalid_argument("tensor \"{}\" holds {}, expected finite numbers", tensor->stored_name, factor);
    }
    factors.push_back(factor);
  }
  return std::optional(std::move(factors));
}

// Longrope (Ding et al., 2024), whatever the metadata calls it: where the list for long sequences is there.
Status read_gguf_longrope(const GgufReader& reader, RopeConfig& rope) {
  QUIRE_ASSIGN_OR_RETURN(auto long_factors, read_factors(reader, "model.rope_factors_long.weight"));
  if (!long_factors) return {};
  QUIRE_ASSIGN_OR_RETURN(auto short_factors, read_factors(reader, "model.rope_factors_short.weight"));
  if (!short_factors)
    return data_loss("the tensor \"rope_factors_short.weight\" is missing, expected as there are long ones");
  rope.scaling = RopeScaling::kLongRope;
  rope.long_factors = *std::move(long_factors);
  rope.short_factors = *std::move(short_factors);
  if (reader.has("rope.scaling.attn_factor")) {
    QUIRE_ASSIGN_OR_RETURN(rope.attention_factor, reader.number("rope.scaling.attn_factor"));
  }
  return {};
}

Result<RopeScaling> read_gguf_scaling(const GgufReader& reader) {
  // The older spelling knew the linear scaling alone.
  const bool has_factor = reader.has("rope.scaling.factor") || reader.has("rope.scale_linear");
  QUIRE_ASSIGN_OR_RETURN(const std::string type, reader.text_or("rope.scaling.type", has_factor ? "linear" : "none"));
  if (type == "none" || type.empty()) return RopeScaling::kNone;
  return parse_rope_scaling(type);
}

Result<RopeConfig> read_gguf_rope(const GgufReader& reader, const GgufDecoder& decoder, const ModelConfig& model) {
  RopeConfig rope;
  rope.interleaved = decoder.interleaved;
  QUIRE_ASSIGN_OR_RETURN(rope.theta, reader.number_or("rope.freq_base", 10000.0));
  rope.rotary_dim = model.head_dim;
  if (!decoder.cached_head_dim) {
    QUIRE_ASSIGN_OR_RETURN(const int64_t rotary,
                           reader.integer_or("rope.dimension_count", model.head_dim, 1, model.head_dim));
    rope.rotary_dim = static_cast<int32_t>(rotary);
  }
  QUIRE_ASSIGN_OR_RETURN(rope.scaling, read_gguf_scaling(reader));
  QUIRE_ASSIGN_OR_RETURN(const double older_factor, reader.number_or("rope.scale_linear", 0));
  QUIRE_ASSIGN_OR_RETURN(const double factor, reader.number_or("rope.scaling.factor", older_factor));
  // llama.cpp writes the factor 0 for "no scaling".
  if (rope.scaling == RopeScaling::kLinear && factor == 0) rope.scaling = RopeScaling::kNone;
  const bool has_factor =
      rope.scaling != RopeScaling::kNone && (reader.has("rope.scaling.factor") || reader.has("rope.scale_linear"));
  if (rope.scaling == RopeScaling::kYarn) QUIRE_RETURN_IF_ERROR(read_gguf_yarn(reader, has_factor ? factor : 1, rope));
  QUIRE_RETURN_IF_ERROR(read_gguf_longrope(reader, rope));
  if (rope.scaling == RopeScaling::kNone || rope.scaling == RopeScaling::kDynamic) return rope;
  const int64_t trained = decoder.trained_context > 0 ? decoder.trained_context : model.max_position;
  QUIRE_ASSIGN_OR_RETURN(rope.original_max_position,
                         reader.integer_or("rope.scaling.original_context_length", trained, 1, kMostPositions));
  if (has_factor) {
    rope.factor = factor;
  } else if (rope.scaling == RopeScaling::kYarn || rope.scaling == RopeScaling::kLongRope) {
    rope.factor = static_cast<double>(model.max_position) / static_cast<double>(rope.original_max_position);
  } else {
    return data_loss("metadata \"{}\" is missing, expected a number", reader.full("rope.scaling.factor"));
  }
  return rope;
}

}  // namespace

Status read_gguf_query_growth(const GgufReader& reader, ModelConfig& out) {
  QUIRE_ASSIGN_OR_RETURN(const double strength, reader.number_or("attention.temperature_scale", 0));
  if (strength == 0) return {};
  const std::string_view key = reader.has("attention.temperature_length") ? "attention.temperature_length"
                                                                          : "rope.scaling.original_context_length";
  QUIRE_ASSIGN_OR_RETURN(const int64_t period, reader.integer(key, 1, kMostPositions));
  out.query_growth = {.strength = strength, .period = static_cast<double>(period)};
  return {};
}

Status read_gguf_windows(const GgufReader& reader, int64_t pattern, ModelConfig& out) {
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> found, reader.window());
  const int32_t window = found.value_or(0);
  if (reader.metadata().is_array(reader.full(kPattern))) {
    QUIRE_ASSIGN_OR_RETURN(const auto windows, reader.metadata().booleans(reader.full(kPattern)));
    if (std::ssize(*windows) != out.num_layers) {
      return data_loss("metadata \"{}\" has {} entries, expected one for each of the {} layers", reader.full(kPattern),
                       windows->size(), out.num_layers);
    }
    set_layer_windows(
        window, [&](int32_t layer) { return bool{(*windows)[static_cast<size_t>(layer)]}; }, out);
    return {};
  }
  QUIRE_ASSIGN_OR_RETURN(pattern, reader.integer_or(kPattern, pattern, 1, 1 << 20));
  set_layer_windows(
      window, [&](int32_t layer) { return (layer + 1) % pattern != 0; }, out);
  return {};
}

Result<int64_t> read_gguf_vocab_size(const GgufReader& reader) {
  constexpr int64_t kMostTokens = 1 << 24;
  if (reader.has("vocab_size")) return reader.integer("vocab_size", 1, kMostTokens);
  QUIRE_ASSIGN_OR_RETURN(std::optional<int64_t> size, reader.metadata().array_size("tokenizer.ggml.tokens"));
  for (const char* name : {"model.embed_tokens.weight", "transformer.wte.weight"}) {
    const checkpoint::CheckpointTensor* table = reader.checkpoint().find(name);
    if (!size && table != nullptr) size = table->view.shape[0];
  }
  if (!size) return data_loss("metadata \"{}\" is missing, expected an integer", reader.full("vocab_size"));
  if (*size < 1 || *size > kMostTokens) {
    return invalid_argument("the vocabulary has {} tokens, expected 1 to {}", *size, kMostTokens);
  }
  return *size;
}

Status read_gguf_special_ids(const GgufReader& reader, ModelConfig& out) {
  QUIRE_RETURN_IF_ERROR(read_special_ids({}, reader.checkpoint().generation_config(), out));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> bos, reader.metadata().integer("tokenizer.ggml.bos_token_id"));
  if (bos && *bos >= 0 && *bos < out.vocab_size) out.bos_id = static_cast<TokenId>(*bos);
  return {};
}

Result<ModelConfig> read_gguf_decoder(const GgufReader& reader, const GgufDecoder& decoder) {
  ModelConfig out;
  QUIRE_ASSIGN_OR_RETURN(const int64_t layers, reader.integer("block_count", 1, 4096));
  out.num_layers = static_cast<int32_t>(layers);
  QUIRE_ASSIGN_OR_RETURN(out.hidden_size, reader.integer("embedding_length", 1, 1 << 20));
  constexpr int64_t kMostInner = 1 << 22;
  if (decoder.lists_layers) {
    QUIRE_ASSIGN_OR_RETURN(const auto sizes, reader.integers_of_layers(decoder.size_key, layers, 1, kMostInner));
    out.intermediate_size = sizes.front();
  } else if (decoder.layers_without_mlp) {
    QUIRE_ASSIGN_OR_RETURN(const auto sizes, reader.integers_of_layers(decoder.size_key, layers, 0, kMostInner));
    out.intermediate_size = std::ranges::max(sizes);
  } else {
    QUIRE_ASSIGN_OR_RETURN(out.intermediate_size, reader.integer(decoder.size_key, 1, kMostInner));
  }
  QUIRE_ASSIGN_OR_RETURN(out.vocab_size, read_gguf_vocab_size(reader));
  QUIRE_RETURN_IF_ERROR(read_gguf_heads(reader, decoder, out));
  QUIRE_ASSIGN_OR_RETURN(out.max_position, reader.integer("context_length", 1, kMostContext));
  QUIRE_ASSIGN_OR_RETURN(out.norm_eps, reader.number(decoder.norm_eps_key));
  if (out.norm_eps < 0) {
    return invalid_argument("metadata \"{}\" is {}, expected at least 0", reader.full(decoder.norm_eps_key),
                            out.norm_eps);
  }
  out.attention_bias = reader.has_tensor_that_ends_with(".self_attn.q_proj.bias") ||
                       reader.has_tensor_that_ends_with(".self_attn.qkv_proj.bias");
  out.attention_output_bias = out.attention_bias;
  out.tie_word_embeddings = !reader.has_tensor("lm_head.weight");
  out.activation = decoder.activation;
  out.attention_scale = 1.0 / std::sqrt(static_cast<double>(out.head_dim));
  QUIRE_ASSIGN_OR_RETURN(out.rope, read_gguf_rope(reader, decoder, out));
  QUIRE_RETURN_IF_ERROR(nn::validate(out.rope, out.head_dim).with_prefix("metadata: "));
  if (!decoder.scaled_context) out.max_position = scaled_context(out.rope, out.max_position);
  QUIRE_RETURN_IF_ERROR(read_gguf_special_ids(reader, out));
  return out;
}

Result<MoeConfig> read_gguf_moe(const GgufReader& reader, const ModelConfig& model, std::string_view size_key,
                                int64_t experts_per_token) {
  MoeConfig moe;
  QUIRE_ASSIGN_OR_RETURN(const int64_t experts, reader.integer("expert_count", 1, kMostExperts));
  constexpr std::string_view kChosen = "expert_used_count";
  const bool is_known = experts_per_token > 0 && experts_per_token <= experts;
  QUIRE_ASSIGN_OR_RETURN(const int64_t chosen, is_known ? reader.integer_or(kChosen, experts_per_token, 1, experts)
                                                        : reader.integer(kChosen, 1, experts));
  QUIRE_ASSIGN_OR_RETURN(moe.intermediate_size, reader.integer(size_key, 1, 1 << 22));
  moe.num_experts = static_cast<int32_t>(experts);
  moe.experts_per_token = static_cast<int32_t>(chosen);
  moe.sparse_layers.assign(static_cast<size_t>(model.num_layers), true);
  return moe;
}

}  // namespace quire::models
