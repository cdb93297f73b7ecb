#include "server/sampling_defaults.h"

#include <cstdlib>
#include <limits>
#include <type_traits>

#include <fmt/format.h>

#include "server/json_fields.h"

namespace quire::server {
namespace json = boost::json;

namespace {

// Models whose files do not say what their cards advise, by a part of their chat templates that no other has.
struct CardAdvice {
  std::string_view mark;
  float temperature;
  float top_p;
};
constexpr CardAdvice kCards[] = {
    // SmolLM2's examples. SmolLM3's template says the same, and goes on with a full stop.
    {"You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>", 0.2f, 0.9f},
};

Result<json::object> parse_config(std::string_view text, std::string_view what) {
  boost::system::error_code error;
  json::value value = json::parse(text, error);
  if (error || !value.is_object()) return invalid_argument("{} is no JSON object", what);
  return std::move(value.get_object());
}

// Calls `add` with the name and the value of each that is set.
template <typename Add>
void for_each_set(const SamplingDefaults& defaults, Add add) {
  const auto one = [&add](const char* name, const auto& value) {
    if (value) add(name, *value);
  };
  one("temperature", defaults.temperature);
  one("top_p", defaults.top_p);
  one("top_k", defaults.top_k);
  one("min_p", defaults.min_p);
  one("repetition_penalty", defaults.repetition_penalty);
}

}  // namespace

void apply_defaults(const SamplingDefaults& defaults, SamplingParams& params) {
  params.temperature = defaults.temperature.value_or(params.temperature);
  params.top_p = defaults.top_p.value_or(params.top_p);
  params.min_p = defaults.min_p.value_or(params.min_p);
  params.repetition_penalty = defaults.repetition_penalty.value_or(params.repetition_penalty);
  params.top_k = defaults.top_k.value_or(params.top_k);
}

Result<SamplingDefaults> read_sampling_defaults(const json::object& config, std::string_view what) {
  JsonFields fields(config);
  SamplingDefaults defaults;
  defaults.temperature = fields.number("temperature");
  defaults.top_p = fields.number("top_p");
  defaults.min_p = fields.number("min_p");
  defaults.repetition_penalty = fields.number("repetition_penalty");
  const auto integer = [&](const char* name, int64_t least) -> std::optional<int32_t> {
    const auto value = fields.integer(name, least, std::numeric_limits<int32_t>::max());
    return value ? std::optional<int32_t>(static_cast<int32_t>(*value)) : std::nullopt;
  };
  defaults.top_k = integer("top_k", -1);
  defaults.max_new_tokens = integer("max_new_tokens", 1);
  Status status = fields.status();
  if (status.ok()) {
    SamplingParams params;
    apply_defaults(defaults, params);
    status = validate(params, {.vocab_size = 1});
  }
  if (!status.ok()) return std::move(status).with_prefix(fmt::format("{}: ", what));
  return defaults;
}

Result<SamplingDefaults> read_sampling_defaults(std::string_view config, std::string_view overriding) {
  json::object merged;
  if (!config.empty()) {
    QUIRE_ASSIGN_OR_RETURN(merged, parse_config(config, "generation_config.json"));
  }
  if (!overriding.empty()) {
    QUIRE_ASSIGN_OR_RETURN(const json::object over, parse_config(overriding, "--override-generation-config"));
    for (const auto& member : over) merged[member.key()] = member.value();
  }
  return read_sampling_defaults(merged, "generation config");
}

std::string to_string(const SamplingDefaults& defaults) {
  std::string out;
  const auto add = [&out](const char* name, auto value) {
    out += fmt::format("{}{}={}", out.empty() ? "" : " ", name, value);
  };
  for_each_set(defaults, add);
  if (defaults.max_new_tokens) add("max_new_tokens", *defaults.max_new_tokens);
  return out;
}

ChatSampling chat_sampling(const SamplingDefaults& advised, std::string_view chat_template) {
  ChatSampling out{.values = advised, .source = "the model's generation config"};
  if (advised.temperature || advised.top_p || advised.top_k || advised.min_p) return out;
  for (const CardAdvice& card : kCards) {
    if (chat_template.find(card.mark) == std::string_view::npos) continue;
    out.values.temperature = card.temperature;
    out.values.top_p = card.top_p;
    out.source = "the model's card";
    return out;
  }
  out.values.temperature = 0.7f;
  out.values.min_p = 0.05f;
  out.source = "for a model that says nothing";
  return out;
}

json::object to_json(const SamplingDefaults& defaults) {
  json::object out;
  // As short as it was written: a float of 0.2 is not 0.2 as a double.
  for_each_set(defaults, [&out](const char* name, auto value) {
    if constexpr (std::is_integral_v<decltype(value)>) {
      out[name] = value;
    } else {
      out[name] = std::strtod(fmt::format("{}", value).c_str(), nullptr);
    }
  });
  return out;
}

}  // namespace quire::server
