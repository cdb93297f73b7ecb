#include "checkpoint/gguf_config.h"

#include <algorithm>
#include <cmath>
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

Status read_vocab_size(const GgufMetadata& metadata, const Keys& keys, const TensorList& tensors,
                       json::object& config) {
  QUIRE_ASSIGN_OR_RETURN(std::optional<int64_t> size, keys.integer("vocab_size"));
  if (!size) {
    QUIRE_ASSIGN_OR_RETURN(size, metadata.array_size("tokenizer.ggml.tokens"));
  }
  const CheckpointTensor* embedding = tensors.find("model.embed_tokens.weight");
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

Status read_family(const GgufMetadata& metadata, const Keys& keys, const GgufArchitecture& architecture,
                   const TensorList& tensors, json::object& config) {
  const bool has_tensors = !tensors.all().empty();
  for (const GgufFieldRule& rule : architecture.fields) {
    QUIRE_RETURN_IF_ERROR(read_field(keys, rule, has_tensors, config));
  }
  const json::value* experts = config.if_contains("num_local_experts");
  const bool has_experts = experts != nullptr && experts->get_int64() > 0 && !architecture.expert_model_class.empty();
  config["architectures"] = {has_experts ? architecture.expert_model_class : architecture.model_class};
  config["model_type"] = has_experts ? architecture.expert_model_type : architecture.model_type;
  config["hidden_act"] = architecture.hidden_act;
  QUIRE_RETURN_IF_ERROR(read_head_dim(keys, config));
  QUIRE_RETURN_IF_ERROR(read_vocab_size(metadata, keys, tensors, config));
  QUIRE_ASSIGN_OR_RETURN(config["rope_parameters"], read_rope(keys));
  config["quire_rope_interleaved"] = architecture.rope_interleaved;
  config["tie_word_embeddings"] = tensors.find("lm_head.weight") == nullptr;
  config["attention_bias"] = any_ends_with(tensors, ".self_attn.q_proj.bias");
  config["mlp_bias"] = any_ends_with(tensors, ".mlp.up_proj.bias");
  return {};
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
  return out;
}

}  // namespace quire::checkpoint
