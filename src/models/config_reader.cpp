#include "models/config_reader.h"

#include <algorithm>
#include <cmath>

#include "checkpoint/text_quote.h"
#include "nn/rotary.h"

namespace quire::models {
namespace {

std::string shown(const boost::json::value& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  if (value.is_string()) return checkpoint::in_quotes(value.get_string());
  return boost::json::serialize(value);
}

// Integers may be written as 8 or 8.0.
bool as_integer(const boost::json::value& value, int64_t& out) {
  if (value.is_int64()) {
    out = value.get_int64();
    return true;
  }
  if (value.is_double() && std::abs(value.get_double()) < 9e15 &&
      std::trunc(value.get_double()) == value.get_double()) {
    out = static_cast<int64_t>(value.get_double());
    return true;
  }
  return false;
}

Status read_ids(const boost::json::object& from, std::string_view key, int64_t vocab_size, std::vector<TokenId>& out) {
  const boost::json::value* value = from.if_contains(key);
  if (value == nullptr || value->is_null()) return {};
  const auto read_one = [&](const boost::json::value& id) -> Status {
    int64_t number = 0;
    // Some configurations name ids that the vocabulary does not have, -1 among them: they can never
    // be sampled.
    if (!as_integer(id, number)) return invalid_argument("config: {} must hold token ids, found {}", key, shown(id));
    if (number >= 0 && number < vocab_size) out.push_back(static_cast<TokenId>(number));
    return {};
  };
  const boost::json::array* list = value->if_array();
  if (list == nullptr) return read_one(*value);
  for (const boost::json::value& id : *list) QUIRE_RETURN_IF_ERROR(read_one(id));
  return {};
}

}  // namespace

bool ConfigReader::has(std::string_view key) const {
  const boost::json::value* value = config_.if_contains(key);
  return value != nullptr && !value->is_null();
}

Result<int64_t> ConfigReader::integer(std::string_view key, int64_t low, int64_t high) const {
  if (!has(key)) return invalid_argument("config: {} is missing, expected an integer", key);
  int64_t number = 0;
  const boost::json::value& value = config_.at(key);
  if (!as_integer(value, number) || number < low || number > high) {
    return invalid_argument("config: {} is {}, expected an integer from {} to {}", key, shown(value), low, high);
  }
  return number;
}

Result<int64_t> ConfigReader::integer_or(std::string_view key, int64_t fallback, int64_t low, int64_t high) const {
  if (!has(key)) return fallback;
  return integer(key, low, high);
}

Result<double> ConfigReader::number_or(std::string_view key, double fallback) const {
  if (!has(key)) return fallback;
  const boost::json::value& value = config_.at(key);
  if (!value.is_number() || !std::isfinite(value.to_number<double>())) {
    return invalid_argument("config: {} is {}, expected a finite number", key, shown(value));
  }
  return value.to_number<double>();
}

Result<bool> ConfigReader::boolean_or(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  const boost::json::value& value = config_.at(key);
  if (!value.is_bool()) return invalid_argument("config: {} is {}, expected true or false", key, shown(value));
  return value.get_bool();
}

Result<std::string> ConfigReader::text_or(std::string_view key, std::string_view fallback) const {
  if (!has(key)) return std::string(fallback);
  const boost::json::value& value = config_.at(key);
  if (!value.is_string()) return invalid_argument("config: {} is {}, expected a string", key, shown(value));
  return std::string(value.get_string());
}

Result<std::vector<double>> ConfigReader::numbers(std::string_view key) const {
  const boost::json::value* value = config_.if_contains(key);
  const boost::json::array* list = value == nullptr ? nullptr : value->if_array();
  if (list == nullptr) return invalid_argument("config: {} must be a list of numbers", key);
  std::vector<double> numbers;
  for (const boost::json::value& number : *list) {
    if (!number.is_number() || !std::isfinite(number.to_number<double>())) {
      return invalid_argument("config: {} holds {}, expected finite numbers", key, shown(number));
    }
    numbers.push_back(number.to_number<double>());
  }
  return numbers;
}

Result<Activation> parse_activation(std::string_view name) {
  struct Choice {
    std::string_view name;
    Activation function;
  };
  static constexpr Choice kChoices[] = {
      {"silu", Activation::kSilu},
      {"swish", Activation::kSilu},
      {"gelu", Activation::kGelu},
      {"gelu_python", Activation::kGelu},
      {"gelu_new", Activation::kGeluTanh},
      {"gelu_fast", Activation::kGeluTanh},
      {"gelu_accurate", Activation::kGeluTanh},
      {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"gelu_python_tanh", Activation::kGeluTanh},
      {"quick_gelu", Activation::kQuickGelu},
      {"relu", Activation::kRelu},
      {"relu2", Activation::kRelu2},
  };
  std::string known;
  for (const Choice& choice : kChoices) {
    if (choice.name == name) return choice.function;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", choice.name);
  }
  return unimplemented("config: the activation {} is not supported yet; supported: {}", checkpoint::in_quotes(name),
                       known);
}

Result<RopeScaling> parse_rope_scaling(std::string_view type) {
  if (type == "default") return RopeScaling::kNone;
  if (type == "dynamic") return RopeScaling::kDynamic;
  if (type == "linear") return RopeScaling::kLinear;
  if (type == "llama3") return RopeScaling::kLlama3;
  if (type == "yarn") return RopeScaling::kYarn;
  if (type == "longrope" || type == "su") return RopeScaling::kLongRope;
  if (type == "proportional") return RopeScaling::kProportional;
  return unimplemented(
      "config: rope type {} is not supported yet; supported: default, linear, dynamic, llama3, yarn, longrope, "
      "proportional",
      checkpoint::in_quotes(type));
}

namespace {

Status read_heads(const ConfigReader& reader, const ConfigDefaults& defaults, ModelConfig& out) {
  QUIRE_ASSIGN_OR_RETURN(const int64_t heads, reader.integer("num_attention_heads", 1, 4096));
  // null says "as many as heads" whatever the default.
  const bool kv_heads_default = defaults.num_kv_heads != 0 && !reader.mentions("num_key_value_heads");
  const int64_t default_kv_heads = kv_heads_default ? std::min(heads, defaults.num_kv_heads) : heads;
  QUIRE_ASSIGN_OR_RETURN(const int64_t kv_heads, reader.integer_or("num_key_value_heads", default_kv_heads, 1, heads));
  const int64_t default_head_dim = defaults.head_dim == 0 ? out.hidden_size / heads : defaults.head_dim;
  QUIRE_ASSIGN_OR_RETURN(const int64_t head_dim, reader.integer_or("head_dim", default_head_dim, 2, kMostHeadDim));
  if (head_dim % 2 != 0) return invalid_argument("config: head_dim is {}, expected an even number", head_dim);
  if (heads % kv_heads != 0) {
    return invalid_argument("config: num_attention_heads={} is not a multiple of num_key_value_heads={}", heads,
                            kv_heads);
  }
  out.num_heads = static_cast<int32_t>(heads);
  out.num_kv_heads = static_cast<int32_t>(kv_heads);
  out.head_dim = static_cast<int32_t>(head_dim);
  return {};
}

Result<RopeScaling> read_scaling(const ConfigReader& reader) {
  QUIRE_ASSIGN_OR_RETURN(const std::string older_spelling, reader.text_or("type", "default"));
  QUIRE_ASSIGN_OR_RETURN(const std::string type, reader.text_or("rope_type", older_spelling));
  return parse_rope_scaling(type);
}

// The numbers of a scaling. `original`: "original_max_position_embeddings" beside the parameters, where given.
Status read_scaling_numbers(const ConfigReader& reader, std::optional<int64_t> original, int64_t max_position,
                            RopeConfig& rope) {
  QUIRE_ASSIGN_OR_RETURN(const int64_t inner,
                         reader.integer_or("original_max_position_embeddings", max_position, 1, kMostPositions));
  rope.original_max_position = original.value_or(inner);
  if (rope.scaling == RopeScaling::kProportional) {
    QUIRE_ASSIGN_OR_RETURN(rope.factor, reader.number_or("factor", 1.0));
    return {};
  }
  const bool by_lengths = rope.scaling == RopeScaling::kYarn || rope.scaling == RopeScaling::kLongRope;
  if (!by_lengths && !reader.has("factor"))
    return invalid_argument("config: the factor of the rope scaling is missing");
  QUIRE_ASSIGN_OR_RETURN(rope.factor, reader.number_or("factor", static_cast<double>(max_position) /
                                                                     static_cast<double>(rope.original_max_position)));
  QUIRE_ASSIGN_OR_RETURN(rope.low_freq_factor, reader.number_or("low_freq_factor", 1.0));
  QUIRE_ASSIGN_OR_RETURN(rope.high_freq_factor, reader.number_or("high_freq_factor", 4.0));
  QUIRE_ASSIGN_OR_RETURN(rope.beta_fast, reader.number_or("beta_fast", 32.0));
  QUIRE_ASSIGN_OR_RETURN(rope.beta_slow, reader.number_or("beta_slow", 1.0));
  QUIRE_ASSIGN_OR_RETURN(rope.mscale, reader.number_or("mscale", 0.0));
  QUIRE_ASSIGN_OR_RETURN(rope.mscale_all_dim, reader.number_or("mscale_all_dim", 0.0));
  QUIRE_ASSIGN_OR_RETURN(rope.truncate, reader.boolean_or("truncate", true));
  if (reader.has("attention_factor")) {
    QUIRE_ASSIGN_OR_RETURN(rope.attention_factor, reader.number_or("attention_factor", 1.0));
  }
  if (rope.scaling == RopeScaling::kLongRope) {
    QUIRE_ASSIGN_OR_RETURN(rope.short_factors, reader.numbers("short_factor"));
    QUIRE_ASSIGN_OR_RETURN(rope.long_factors, reader.numbers("long_factor"));
  }
  return {};
}

// An entry, with what stands beside "rope_parameters" in `defaults` and `original`.
Result<RopeConfig> read_rope_numbers(const boost::json::object& entry, const ModelConfig& model,
                                     const ConfigDefaults& defaults, std::optional<int64_t> original) {
  const ConfigReader reader(entry);
  RopeConfig rope;
  QUIRE_ASSIGN_OR_RETURN(rope.theta, reader.number_or("rope_theta", defaults.rope_theta));
  QUIRE_ASSIGN_OR_RETURN(const double share, reader.number_or("partial_rotary_factor", defaults.rotary_share));
  if (!(share > 0 && share <= 1)) {
    return invalid_argument("config: partial_rotary_factor is {}, expected more than 0 and at most 1", share);
  }
  QUIRE_ASSIGN_OR_RETURN(rope.scaling, read_scaling(reader));
  const bool proportional = rope.scaling == RopeScaling::kProportional;
  if (share != 1 && !defaults.partial_rotary && !proportional) {
    return unimplemented(
        "config: partial_rotary_factor is {}, which the reference of this architecture ignores; supported: 1", share);
  }
  rope.rotary_dim = proportional ? model.head_dim : static_cast<int32_t>(std::floor(model.head_dim * share));
  if (proportional) rope.turning_share = share;
  if (rope.scaling != RopeScaling::kNone && rope.scaling != RopeScaling::kDynamic) {
    QUIRE_RETURN_IF_ERROR(read_scaling_numbers(reader, original, model.max_position, rope));
  }
  QUIRE_RETURN_IF_ERROR(nn::validate(rope, model.head_dim).with_prefix("config: "));
  return rope;
}

}  // namespace

int64_t scaled_context(const RopeConfig& rope, int64_t stated) {
  if (rope.scaling != RopeScaling::kYarn && rope.scaling != RopeScaling::kLinear) return stated;
  const int64_t trained = rope.scaling == RopeScaling::kYarn ? rope.original_max_position : stated;
  const double scaled = std::floor(static_cast<double>(trained) * rope.factor);
  return std::max(stated, static_cast<int64_t>(std::min(scaled, static_cast<double>(kMostContext))));
}

Result<RopeConfig> read_rope_entry(const boost::json::object& entry, const ModelConfig& model,
                                   const ConfigDefaults& defaults) {
  return read_rope_numbers(entry, model, defaults, std::nullopt);
}

Result<RopeConfig> read_rope(const boost::json::object& config, const ModelConfig& model,
                             const ConfigDefaults& defaults) {
  const ConfigReader top(config);
  ConfigDefaults beside = defaults;
  QUIRE_ASSIGN_OR_RETURN(beside.rope_theta, top.number_or("rope_theta", defaults.rope_theta));
  QUIRE_ASSIGN_OR_RETURN(beside.rotary_share, top.number_or("partial_rotary_factor", defaults.rotary_share));
  std::optional<int64_t> original;
  if (top.has("original_max_position_embeddings")) {
    QUIRE_ASSIGN_OR_RETURN(original, top.integer("original_max_position_embeddings", 1, kMostPositions));
  }
  // The older key wins where it says something.
  boost::json::object entry;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!top.has(key)) continue;
    const boost::json::object* found = config.at(key).if_object();
    if (found == nullptr) return invalid_argument("config: {} must be an object", key);
    if (!found->empty()) entry = *found;
  }
  return read_rope_numbers(entry, model, beside, original);
}

Status read_query_growth(const boost::json::object& config, ModelConfig& out) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const boost::json::value* rope = config.if_contains(key);
    if (rope == nullptr || !rope->is_object()) continue;
    const ConfigReader reader(rope->get_object());
    QUIRE_ASSIGN_OR_RETURN(const double beta, reader.number_or("llama_4_scaling_beta", 0));
    if (beta == 0) continue;
    QUIRE_ASSIGN_OR_RETURN(const int64_t trained,
                           reader.integer("original_max_position_embeddings", 1, kMostPositions));
    out.query_growth = {.strength = beta, .period = static_cast<double>(trained)};
  }
  return {};
}

namespace {

Result<RopeConfig> read_entry_of_layers(const boost::json::object& config, std::string_view type,
                                        std::string_view older_key, double theta, const ModelConfig& model) {
  const boost::json::value* found = config.if_contains("rope_parameters");
  const boost::json::object* all = found == nullptr ? nullptr : found->if_object();
  const boost::json::value* entry = all == nullptr ? nullptr : all->if_contains(type);
  const ConfigReader reader(config);
  ConfigDefaults defaults;
  QUIRE_ASSIGN_OR_RETURN(defaults.rope_theta, reader.number_or(older_key, theta));
  if (entry != nullptr && entry->is_object()) return read_rope_entry(entry->get_object(), model, defaults);
  const bool flat = all != nullptr && (all->contains("rope_type") || all->contains("rope_theta"));
  if (type != "full_attention" || !(flat || reader.has("rope_scaling"))) return read_rope_entry({}, model, defaults);
  return read_rope(config, model, defaults);
}

}  // namespace

Result<RopeConfig> read_rope_of_layers(const boost::json::object& config, std::string_view type,
                                       std::string_view older_key, double theta, const ModelConfig& model) {
  QUIRE_ASSIGN_OR_RETURN(RopeConfig rope, read_entry_of_layers(config, type, older_key, theta, model));
  rope.truncate = true;  // yarn's: the reference looks for it beside the entries, where it is no key
  return rope;
}

boost::json::object with_usual_keys(const boost::json::object& config, std::span<const KeyName> names) {
  boost::json::object out = config;
  for (const auto& [own, usual] : names) {
    if (ConfigReader(config).has(own) && !ConfigReader(config).has(usual)) out[usual] = config.at(own);
  }
  return out;
}

Status check_even_heads(const ModelConfig& config) {
  if (int64_t{config.num_heads} * config.head_dim == config.hidden_size) return {};
  return invalid_argument("config: hidden_size={} over {} attention heads of {}: expected heads that make it up",
                          config.hidden_size, config.num_heads, config.head_dim);
}

Result<boost::json::object> text_config(const boost::json::object& config) {
  const boost::json::value* found = config.if_contains("text_config");
  if (found == nullptr) return config;
  const boost::json::object* inner = found->if_object();
  if (inner == nullptr) return invalid_argument("config: text_config must be an object");
  boost::json::object text = *inner;
  for (const char* key : {"eos_token_id", "bos_token_id", "tie_word_embeddings"}) {
    if (config.contains(key)) text[key] = config.at(key);
  }
  return text;
}

Result<ModelConfig> read_decoder_config(const boost::json::object& config, const boost::json::object& generation,
                                        const ConfigDefaults& defaults) {
  const ConfigReader reader(config);
  ModelConfig out;
  QUIRE_ASSIGN_OR_RETURN(out.vocab_size, reader.integer("vocab_size", 1, 1 << 24));
  QUIRE_ASSIGN_OR_RETURN(out.hidden_size, reader.integer("hidden_size", 1, 1 << 20));
  QUIRE_ASSIGN_OR_RETURN(out.intermediate_size, reader.integer("intermediate_size", 1, 1 << 22));
  QUIRE_ASSIGN_OR_RETURN(const int64_t layers, reader.integer("num_hidden_layers", 1, 4096));
  out.num_layers = static_cast<int32_t>(layers);
  QUIRE_RETURN_IF_ERROR(read_heads(reader, defaults, out));
  QUIRE_ASSIGN_OR_RETURN(out.max_position,
                         reader.integer_or("max_position_embeddings", defaults.max_position, 1, kMostContext));
  QUIRE_ASSIGN_OR_RETURN(out.norm_eps, reader.number_or(defaults.norm_eps_key, defaults.norm_eps));
  if (out.norm_eps < 0) {
    return invalid_argument("config: {} is {}, expected at least 0", defaults.norm_eps_key, out.norm_eps);
  }
  QUIRE_ASSIGN_OR_RETURN(out.attention_bias, reader.boolean_or("attention_bias", defaults.attention_bias));
  out.attention_output_bias = out.attention_bias;
  QUIRE_ASSIGN_OR_RETURN(out.tie_word_embeddings,
                         reader.boolean_or("tie_word_embeddings", defaults.tie_word_embeddings));
  QUIRE_ASSIGN_OR_RETURN(const std::string activation, reader.text_or(defaults.activation_key, defaults.activation));
  QUIRE_ASSIGN_OR_RETURN(out.activation, parse_activation(activation));
  out.attention_scale = 1.0 / std::sqrt(static_cast<double>(out.head_dim));
  QUIRE_ASSIGN_OR_RETURN(out.rope, read_rope(config, out, defaults));
  if (!defaults.scaled_context) out.max_position = scaled_context(out.rope, out.max_position);
  QUIRE_RETURN_IF_ERROR(read_special_ids(config, generation, out));
  return out;
}

Result<std::optional<int32_t>> read_window(const boost::json::object& config, std::optional<int32_t> fallback) {
  const ConfigReader reader(config);
  if (!reader.mentions("sliding_window")) return fallback;
  if (!reader.has("sliding_window")) return std::optional<int32_t>();
  QUIRE_ASSIGN_OR_RETURN(const int64_t window, reader.integer("sliding_window", 1, int64_t{1} << 30));
  return std::optional<int32_t>(static_cast<int32_t>(window));
}

void set_layer_windows(int32_t window, FunctionRef<bool(int32_t)> has_window, ModelConfig& out) {
  out.layer_windows.assign(static_cast<size_t>(out.num_layers), 0);
  for (int32_t layer = 0; layer < out.num_layers; ++layer) {
    if (has_window(layer)) out.layer_windows[static_cast<size_t>(layer)] = window;
  }
}

Status read_layer_windows(const boost::json::object& config, int32_t window, FunctionRef<bool(int32_t)> has_window,
                          ModelConfig& out) {
  if (!ConfigReader(config).has("layer_types")) {
    set_layer_windows(window, has_window, out);
    return {};
  }
  out.layer_windows.assign(static_cast<size_t>(out.num_layers), 0);
  const boost::json::array* types = config.at("layer_types").if_array();
  if (types == nullptr || types->size() != out.layer_windows.size()) {
    return invalid_argument("config: layer_types must be a list of {} names, one a layer", out.num_layers);
  }
  for (size_t layer = 0; layer < types->size(); ++layer) {
    const boost::json::value& type = (*types)[layer];
    if (type == "sliding_attention") {
      out.layer_windows[layer] = window;
    } else if (type != "full_attention") {
      return unimplemented("config: layer_types has {}; supported: \"full_attention\", \"sliding_attention\"",
                           shown(type));
    }
  }
  return {};
}

void set_unrotated_layers(int64_t interval, ModelConfig& out) {
  for (int64_t layer = 0; layer < out.num_layers; ++layer) out.unrotated_layers.push_back((layer + 1) % interval == 0);
}

Status read_unrotated_layers(const ConfigReader& reader, int64_t default_interval, ModelConfig& out) {
  std::vector<double> rotates;
  if (reader.has("no_rope_layers")) {
    QUIRE_ASSIGN_OR_RETURN(rotates, reader.numbers("no_rope_layers"));
  }
  if (rotates.empty()) {
    QUIRE_ASSIGN_OR_RETURN(const int64_t interval,
                           reader.integer_or("no_rope_layer_interval", default_interval, 1, 1 << 20));
    set_unrotated_layers(interval, out);
    return {};
  }
  if (std::ssize(rotates) < out.num_layers) {
    return invalid_argument("config: no_rope_layers has {} entries, expected one for each of the {} layers",
                            rotates.size(), out.num_layers);
  }
  for (int32_t layer = 0; layer < out.num_layers; ++layer)
    out.unrotated_layers.push_back(rotates[static_cast<size_t>(layer)] == 0);
  return {};
}

Result<std::vector<bool>> read_recurrent_layers(const boost::json::object& config, std::string_view key,
                                                int32_t num_layers, std::span<const std::string_view> recurrent,
                                                std::span<const std::string_view> attention) {
  const boost::json::array* types = config.at(key).if_array();
  if (types == nullptr || std::ssize(*types) != num_layers) {
    return invalid_argument("config: {} must be a list of {} names, one for each layer", key, num_layers);
  }
  std::vector<bool> out;
  for (const boost::json::value& type : *types) {
    const auto is = [&](std::string_view name) { return type.is_string() && type.get_string() == name; };
    out.push_back(std::ranges::any_of(recurrent, is));
    if (out.back() || std::ranges::any_of(attention, is)) continue;
    return invalid_argument("config: {} has {} for layer {}, expected \"{}\" or \"{}\"", key,
                            boost::json::serialize(type), out.size() - 1, recurrent.front(), attention.front());
  }
  return out;
}

Status read_special_ids(const boost::json::object& config, const boost::json::object& generation, ModelConfig& out) {
  QUIRE_RETURN_IF_ERROR(read_ids(generation, "eos_token_id", out.vocab_size, out.eos_ids));
  if (out.eos_ids.empty()) QUIRE_RETURN_IF_ERROR(read_ids(config, "eos_token_id", out.vocab_size, out.eos_ids));
  std::vector<TokenId> bos;
  QUIRE_RETURN_IF_ERROR(read_ids(config, "bos_token_id", out.vocab_size, bos));
  if (!bos.empty()) out.bos_id = bos.front();
  return {};
}

}  // namespace quire::models
