#include "checkpoint/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>

#include "checkpoint/text_quote.h"

namespace quire::checkpoint {
namespace {

namespace json = boost::json;

// The keys of one architecture: "llama." before each.
class Keys {
 public:
  Keys(const GgufMetadata& metadata, std::string_view architecture) : metadata_(metadata), prefix_(architecture) {
    prefix_ += '.';
  }
  std::string full(std::string_view key) const { return prefix_ + std::string(key); }
  bool has(std::string_view key) const { return metadata_.has(full(key)); }
  auto integer(std::string_view key) const { return metadata_.integer(full(key)); }
  auto number(std::string_view key) const { return metadata_.number(full(key)); }
  auto text(std::string_view key) const { return metadata_.text(full(key)); }
  auto boolean(std::string_view key) const { return metadata_.boolean(full(key)); }

 private:
  const GgufMetadata& metadata_;
  std::string prefix_;
};

Status read_field(const Keys& keys, const GgufFieldRule& rule, bool has_tensors, json::object& config) {
  if (!keys.has(rule.key)) {
    if (!rule.required || !has_tensors) return {};
    return data_loss("metadata \"{}\" is missing, expected {}", keys.full(rule.key),
                     rule.kind == GgufFieldKind::kInteger ? "an integer" : "a number");
  }
  if (rule.kind == GgufFieldKind::kInteger) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> value, keys.integer(rule.key));
    config[rule.name] = *value;
  } else {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<double> value, keys.number(rule.key));
    config[rule.name] = *value;
  }
  return {};
}

// head_dim: what the file says, else what the heads leave; absent when neither gives a number.
Status read_head_dim(const Keys& keys, json::object& config) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> key_length, keys.integer("attention.key_length"));
  const json::value* hidden = config.if_contains("hidden_size");
  const json::value* heads = config.if_contains("num_attention_heads");
  if (key_length) {
    config["head_dim"] = *key_length;
  } else if (hidden != nullptr && heads != nullptr && heads->get_int64() > 0) {
    config["head_dim"] = hidden->get_int64() / heads->get_int64();
  }
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> rotary, keys.integer("rope.dimension_count"));
  const json::value* head_dim = config.if_contains("head_dim");
  if (rotary && head_dim != nullptr && head_dim->get_int64() > 0 && *rotary != head_dim->get_int64()) {
    config["partial_rotary_factor"] = static_cast<double>(*rotary) / static_cast<double>(head_dim->get_int64());
  }
  return {};
}

// Yarn (Peng et al., 2023). GGUF's factors multiply the 0.1 ln(factor) + 1 by which cos and sin are scaled;
// config.json's attention_factor is the whole product.
Status read_yarn(const Keys& keys, double factor, json::object& rope) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> extrapolation, keys.number("rope.scaling.yarn_ext_factor"));
  if (extrapolation && *extrapolation >= 0 && *extrapolation != 1) {
    return unimplemented("metadata \"{}\" is {}, which is not supported yet; supported: 1",
                         keys.full("rope.scaling.yarn_ext_factor"), *extrapolation);
  }
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> beta_fast, keys.number("rope.scaling.yarn_beta_fast"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> beta_slow, keys.number("rope.scaling.yarn_beta_slow"));
  if (beta_fast) rope["beta_fast"] = *beta_fast;
  if (beta_slow) rope["beta_slow"] = *beta_slow;
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> log_multiplier, keys.number("rope.scaling.yarn_log_multiplier"));
  if (log_multiplier) rope["mscale"] = rope["mscale_all_dim"] = *log_multiplier / 0.1;
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> attention, keys.number("rope.scaling.attn_factor"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> yarn_attention, keys.number("rope.scaling.yarn_attn_factor"));
  if ((attention || yarn_attention) && factor > 0) {
    rope["attention_factor"] = attention.value_or(1) * yarn_attention.value_or(1) * (0.1 * std::log(factor) + 1);
  }
  return {};
}

Result<json::object> read_rope(const Keys& keys) {
  json::object rope;
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> theta, keys.number("rope.freq_base"));
  rope["rope_theta"] = theta.value_or(10000.0);

  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string_view> found_type, keys.text("rope.scaling.type"));
  QUIRE_ASSIGN_OR_RETURN(std::optional<double> factor, keys.number("rope.scaling.factor"));
  // The older spelling, which knew the linear scaling alone.
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> scale_linear, keys.number("rope.scale_linear"));
  std::string type(found_type.value_or(scale_linear || factor ? "linear" : "none"));
  if (!factor) factor = scale_linear;
  // llama.cpp writes the factor 0 for "no scaling".
  if (type == "none" || type.empty() || (type == "linear" && factor.value_or(0) == 0)) {
    rope["rope_type"] = "default";
    return rope;
  }
  rope["rope_type"] = type;
  if (factor) rope["factor"] = *factor;
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> original, keys.integer("rope.scaling.original_context_length"));
  if (original) rope["original_max_position_embeddings"] = *original;
  if (type == "yarn") QUIRE_RETURN_IF_ERROR(read_yarn(keys, factor.value_or(1), rope));
  return rope;
}

// Multi-head latent attention and the router beside it (DeepSeek). Sizes of heads are those of queries before keys are
// taken to their side: under "_mla" where the file has both.
Status read_latent(const Keys& keys, json::object& config) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> rank, keys.integer("attention.kv_lora_rank"));
  if (!rank) return {};
  const auto either = [&keys](std::string_view key, std::string_view older) {
    return keys.integer(keys.has(key) ? key : older);
  };
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> key, either("attention.key_length_mla", "attention.key_length"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> value,
                         either("attention.value_length_mla", "attention.value_length"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> rotary, keys.integer("rope.dimension_count"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> query_rank, keys.integer("attention.q_lora_rank"));
  if (!key || !value || !rotary) {
    return data_loss("metadata of latent attention: expected \"{}\", \"{}\" and \"{}\"",
                     keys.full("attention.key_length"), keys.full("attention.value_length"),
                     keys.full("rope.dimension_count"));
  }
  if (*rotary < 0 || *rotary > *key) {
    return data_loss("metadata \"{}\" is {}, expected 0 to the size of a head, {}", keys.full("rope.dimension_count"),
                     *rotary, *key);
  }
  config["kv_lora_rank"] = *rank;
  config["q_lora_rank"] = query_rank ? json::value(*query_rank) : json::value(nullptr);
  config["qk_rope_head_dim"] = *rotary;
  config["qk_nope_head_dim"] = *key - *rotary;
  config["v_head_dim"] = *value;
  QUIRE_ASSIGN_OR_RETURN(const std::optional<bool> normalise, keys.boolean("expert_weights_norm"));
  config["norm_topk_prob"] = normalise.value_or(false);
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> groups, keys.integer("expert_group_count"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> groups_used, keys.integer("expert_group_used_count"));
  config["n_group"] = groups.value_or(1);
  config["topk_group"] = groups_used.value_or(1);
  return {};
}

// Layers behind the last that predict further tokens are counted with the others here, and by themselves in
// config.json.
Status read_next_layers(const Keys& keys, json::object& config) {
  const json::value* found = config.if_contains("num_nextn_predict_layers");
  const json::value* layers = config.if_contains("num_hidden_layers");
  if (found == nullptr || layers == nullptr) return {};
  const int64_t next = found->get_int64();
  if (next < 0 || next >= layers->get_int64()) {
    return data_loss("metadata \"{}\" is {}, expected less than the {} layers", keys.full("nextn_predict_layers"), next,
                     layers->get_int64());
  }
  config["num_hidden_layers"] = layers->get_int64() - next;
  return {};
}

// Whether routers take sigmoids: 2; softmax is 1. Errors: unimplemented for another.
Result<bool> has_sigmoid_router(const Keys& keys) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> function, keys.integer("expert_gating_func"));
  if (function && *function != 1 && *function != 2) {
    return unimplemented("metadata \"{}\" is {}, which is not supported yet; supported: 1 (softmax), 2 (sigmoid)",
                         keys.full("expert_gating_func"), *function);
  }
  return function.value_or(1) == 2;
}

Status read_vocab_size(const GgufMetadata& metadata, const Keys& keys, const TensorList& tensors,
                       json::object& config) {
  QUIRE_ASSIGN_OR_RETURN(std::optional<int64_t> size, keys.integer("vocab_size"));
  if (!size) {
    QUIRE_ASSIGN_OR_RETURN(size, metadata.array_size("tokenizer.ggml.tokens"));
  }
  const CheckpointTensor* embedding = tensors.find("model.embed_tokens.weight");
  if (embedding == nullptr) embedding = tensors.find("transformer.wte.weight");
  if (!size && embedding != nullptr) size = embedding->view.shape[0];
  if (size) config["vocab_size"] = *size;
  return {};
}

bool any_ends_with(const TensorList& tensors, std::string_view suffix) {
  const auto all = tensors.all();
  return std::any_of(all.begin(), all.end(), [&](const CheckpointTensor& t) { return t.name.ends_with(suffix); });
}

Status read_special_ids(const GgufMetadata& metadata, GgufConfig& out) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> bos, metadata.integer("tokenizer.ggml.bos_token_id"));
  if (bos) out.config["bos_token_id"] = *bos;
  json::array ends;
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> id, metadata.integer(key));
    if (id && std::find(ends.begin(), ends.end(), json::value(*id)) == ends.end()) ends.emplace_back(*id);
  }
  if (ends.empty()) return {};
  if (metadata.has("tokenizer.ggml.eos_token_id")) out.config["eos_token_id"] = ends.front();
  out.generation_config["eos_token_id"] = std::move(ends);
  return {};
}

// What the file's makers advise about drawing tokens, under the names of generation_config.json. Keys that it has no
// name for (xtc, mirostat, the order of the samplers) are left out.
Status read_sampling(const GgufMetadata& metadata, json::object& generation_config) {
  for (const auto& [key, name] :
       {std::pair{"general.sampling.temp", "temperature"}, std::pair{"general.sampling.top_p", "top_p"},
        std::pair{"general.sampling.min_p", "min_p"},
        std::pair{"general.sampling.penalty_repeat", "repetition_penalty"}}) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<double> value, metadata.number(key));
    if (value) generation_config[name] = *value;
  }
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> top_k, metadata.integer("general.sampling.top_k"));
  if (top_k) generation_config["top_k"] = *top_k;
  return {};
}

// What a file leaves out means something else than in config.json.
void read_silent_defaults(std::string_view architecture, json::object& config) {
  const auto number = [&](const char* key) {
    const json::value* found = config.if_contains(key);
    return found == nullptr ? int64_t{0} : found->get_int64();
  };
  const int64_t heads = number("num_attention_heads");
  if (heads > 0 && !config.contains("num_key_value_heads")) config["num_key_value_heads"] = heads;
  if (config.contains("sliding_window") && number("sliding_window") == 0) config["sliding_window"] = nullptr;
  if (architecture == "glm4" && !config.contains("partial_rotary_factor")) config["partial_rotary_factor"] = 1.0;
  if (!architecture.starts_with("gemma")) return;
  // Scores are scaled by the size of a head, but for the largest model of either generation.
  const int64_t largest = architecture == "gemma2" ? 46 : 62;
  const bool is_largest = number("num_hidden_layers") == largest && heads > 0;
  config["query_pre_attn_scalar"] = is_largest ? number("hidden_size") / heads : number("head_dim");
}

// Which layers see a window: those that a list says, or every layer but each n-th, 6 where the file does not say; none
// without a window.
Status read_gemma3_windows(const GgufMetadata& metadata, const Keys& keys, json::object& config) {
  if (!config.contains("sliding_window")) config["sliding_window"] = nullptr;
  const std::string key = keys.full("attention.sliding_window_pattern");
  if (metadata.is_array(key)) {
    QUIRE_ASSIGN_OR_RETURN(const auto windows, metadata.booleans(key));
    json::array types;
    for (const bool window : *windows) types.emplace_back(window ? "sliding_attention" : "full_attention");
    config["layer_types"] = std::move(types);
    return {};
  }
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> pattern, metadata.integer(key));
  if (pattern) config["sliding_window_pattern"] = *pattern;
  return {};
}

// Phi-3's lists of divisors are tensors here and part of the configuration there.
Status read_longrope(const Keys& keys, const TensorList& tensors, json::object& config) {
  json::object* rope = config["rope_parameters"].if_object();
  if (tensors.find("model.rope_factors_long.weight") == nullptr) return {};
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> original, keys.integer("rope.scaling.original_context_length"));
  if (original) config["original_max_position_embeddings"] = *original;
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> attention, keys.number("rope.scaling.attn_factor"));
  if (attention) (*rope)["attention_factor"] = *attention;
  for (const auto& [tensor_name, key] : {std::pair{"model.rope_factors_long.weight", "long_factor"},
                                         std::pair{"model.rope_factors_short.weight", "short_factor"}}) {
    const CheckpointTensor* tensor = tensors.find(tensor_name);
    if (tensor == nullptr) continue;
    if (tensor->view.dtype != DType::kF32 || tensor->view.shape.rank() != 1) {
      return data_loss("tensor \"{}\" is {} {}, expected a list of F32", tensor->stored_name, name(tensor->view.dtype),
                       tensor->view.shape.to_string());
    }
    json::array factors;
    for (int64_t i = 0; i < tensor->view.shape[0]; ++i) {
      float factor;
      std::memcpy(&factor, static_cast<const uint8_t*>(tensor->view.data) + i * 4, sizeof(factor));
      factors.emplace_back(factor);
    }
    (*rope)[key] = std::move(factors);
    (*rope)["rope_type"] = "longrope";
  }
  return {};
}

Status read_family(const GgufMetadata& metadata, const Keys& keys, const GgufArchitecture& architecture,
                   const TensorList& tensors, json::object& config) {
  const bool has_tensors = !tensors.all().empty();
  for (const GgufFieldRule& rule : architecture.fields) {
    QUIRE_RETURN_IF_ERROR(read_field(keys, rule, has_tensors, config));
  }
  for (const GgufFlag& flag : architecture.flags) config[flag.name] = flag.value;
  const json::value* experts = config.if_contains("num_local_experts");
  const bool has_experts = experts != nullptr && experts->get_int64() > 0 && !architecture.expert_model_class.empty();
  config["architectures"] = {has_experts ? architecture.expert_model_class : architecture.model_class};
  config["model_type"] = has_experts ? architecture.expert_model_type : architecture.model_type;
  if (!architecture.sigmoid_model_class.empty()) {
    QUIRE_ASSIGN_OR_RETURN(const bool sigmoid, has_sigmoid_router(keys));
    if (sigmoid) {
      config["architectures"] = {architecture.sigmoid_model_class};
      config["model_type"] = architecture.sigmoid_model_type;
    }
    QUIRE_RETURN_IF_ERROR(read_latent(keys, config));
    QUIRE_RETURN_IF_ERROR(read_next_layers(keys, config));
    // Only the router of softmaxes has a choice of methods.
    const bool grouped = config.contains("n_group") && config["n_group"].get_int64() > 1;
    if (!sigmoid) config["topk_method"] = grouped ? "group_limited_greedy" : "greedy";
  }
  config["hidden_act"] = architecture.hidden_act;
  QUIRE_RETURN_IF_ERROR(read_head_dim(keys, config));
  QUIRE_RETURN_IF_ERROR(read_vocab_size(metadata, keys, tensors, config));
  QUIRE_ASSIGN_OR_RETURN(config["rope_parameters"], read_rope(keys));
  config["quire_rope_interleaved"] = architecture.rope_interleaved;
  config["tie_word_embeddings"] = tensors.find("lm_head.weight") == nullptr;
  config["attention_bias"] = any_ends_with(tensors, ".self_attn.q_proj.bias");
  config["mlp_bias"] = any_ends_with(tensors, ".mlp.up_proj.bias");
  read_silent_defaults(architecture.name, config);
  if (architecture.name == "gemma3") QUIRE_RETURN_IF_ERROR(read_gemma3_windows(metadata, keys, config));
  return read_longrope(keys, tensors, config);
}

}  // namespace

Result<GgufConfig> read_gguf_config(const GgufMetadata& metadata, std::string_view architecture_name,
                                    const GgufArchitecture* architecture, const TensorList& tensors) {
  GgufConfig out;
  const Keys keys(metadata, architecture_name);
  if (architecture != nullptr) {
    QUIRE_RETURN_IF_ERROR(read_family(metadata, keys, *architecture, tensors, out.config));
  } else {
    out.config["architectures"] = {architecture_name};
    out.config["model_type"] = architecture_name;
    for (const GgufFieldRule& rule : generic_gguf_fields()) {
      QUIRE_RETURN_IF_ERROR(read_field(keys, rule, /*has_tensors=*/false, out.config));
    }
    QUIRE_RETURN_IF_ERROR(read_vocab_size(metadata, keys, tensors, out.config));
  }
  QUIRE_RETURN_IF_ERROR(read_special_ids(metadata, out));
  QUIRE_RETURN_IF_ERROR(read_sampling(metadata, out.generation_config));
  return out;
}

}  // namespace quire::checkpoint
