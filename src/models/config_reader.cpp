#include "models/config_reader.h"

#include <cmath>

namespace quire::models {
namespace {

std::string shown(const boost::json::value& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  std::string text = boost::json::serialize(value);
  if (text.size() > 60) text = text.substr(0, 60) + "...";
  return text;
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

Result<RopeConfig> read_rope(const boost::json::object& config, int64_t max_position) {
  RopeConfig rope;
  const ConfigReader top(config);
  QUIRE_ASSIGN_OR_RETURN(rope.theta, top.number_or("rope_theta", 10000.0));
  QUIRE_ASSIGN_OR_RETURN(rope.interleaved, top.boolean_or("quire_rope_interleaved", false));
  const char* key = top.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!top.has(key)) return rope;
  const boost::json::object* scaling = config.at(key).if_object();
  if (scaling == nullptr) return invalid_argument("config: {} must be an object", key);

  const ConfigReader reader(*scaling);
  QUIRE_ASSIGN_OR_RETURN(rope.theta, reader.number_or("rope_theta", rope.theta));
  QUIRE_ASSIGN_OR_RETURN(std::string older_spelling, reader.text_or("type", "default"));
  QUIRE_ASSIGN_OR_RETURN(std::string type, reader.text_or("rope_type", older_spelling));
  if (type == "default") return rope;
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
  } else if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
  } else {
    return unimplemented("config: rope type \"{}\" is not supported yet; supported: default, linear, llama3, yarn",
                         type);
  }
  if (!reader.has("factor")) return invalid_argument("config: {}.factor is missing for rope type \"{}\"", key, type);
  QUIRE_ASSIGN_OR_RETURN(rope.factor, reader.number_or("factor", 1.0));
  constexpr int64_t kMost = int64_t{1} << 31;
  QUIRE_ASSIGN_OR_RETURN(const int64_t outer_original,
                         top.integer_or("original_max_position_embeddings", max_position, 1, kMost));
  QUIRE_ASSIGN_OR_RETURN(rope.original_max_position,
                         reader.integer_or("original_max_position_embeddings", outer_original, 1, kMost));
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
  return rope;
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
