#include "engine/read_speculative.h"

#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace quire::engine {
namespace {
namespace json = boost::json;

constexpr const char* kPrefix = "speculative_config: ";

// Of what is not built here: a sentence for each.
struct RefusedMember {
  std::string_view name;
  const char* why;
};
constexpr const char* kNotOfDraftModel = "is not built";
constexpr RefusedMember kRefusedMembers[] = {
    {"draft_tensor_parallel_size", "must be 1: a model that drafts is computed whole, by the engine's process"},
    {"revision", kNotOfDraftModel},
    {"code_revision", kNotOfDraftModel},
    {"draft_load_config", kNotOfDraftModel},
    {"parallel_drafting", kNotOfDraftModel},
    {"draft_sample_method", kNotOfDraftModel},
    {"speculative_token_tree", "is not built; a head guesses one token after the other"},
    {"moe_backend", kNotOfDraftModel},
    {"attention_backend", kNotOfDraftModel},
    {"use_heterogeneous_vocab", kNotOfDraftModel},
};

bool asks_for_nothing(const json::value& value) {
  return value.is_null() || (value.is_bool() && !value.get_bool());
}

Status wrong(std::string_view name, const char* what) {
  return invalid_argument("{}{} {}", kPrefix, name, what);
}

template <typename Integer>
Status read_integer(std::string_view name, const json::value& value, Integer& into) {
  boost::system::error_code error;
  const auto number = value.is_number() ? value.to_number<Integer>(error) : 0;
  if (!value.is_number() || error) return wrong(name, "must be a whole number");
  into = number;
  return {};
}

Status read_real(std::string_view name, const json::value& value, double& into) {
  if (!value.is_number()) return wrong(name, "must be a number");
  into = value.to_number<double>();
  return {};
}

Status read_acceptance(std::string_view name, const json::value& value, AcceptanceRule& rule) {
  if (!value.is_string()) return wrong(name, "must be a string");
  QUIRE_ASSIGN_OR_RETURN(rule.method, parse_choice<AcceptanceMethod>(std::string(value.get_string())));
  return {};
}

Status read_quantization(std::string_view name, const json::value& value, Quantization& into) {
  if (!value.is_string()) return wrong(name, "must be a string");
  auto read = parse_choice<Quantization>(std::string(value.get_string()));
  if (!read.ok()) return read.status().with_prefix(kPrefix);
  into = *read;
  return {};
}

// A method, or (with a slash or a dot in it) the path of a model that drafts.
Status read_method(std::string_view name, const json::value& value, SpeculativeConfig& config) {
  if (!value.is_string()) return wrong(name, "must be a string");
  const std::string word(value.get_string());
  const auto method = parse_choice<SpeculativeMethod>(word);
  const bool is_path = name == "model" && word.find_first_of("/.") != std::string::npos;
  if (!is_path) QUIRE_RETURN_IF_ERROR(method.status());
  if (method.ok()) {
    config.method = *method;
  } else {
    config.model = word;
  }
  return {};
}

Status read_member(std::string_view name, const json::value& value, SpeculativeConfig& config) {
  const auto optional_integer = [&](std::optional<int32_t>& into) {
    int32_t number = 0;
    QUIRE_RETURN_IF_ERROR(read_integer(name, value, number));
    into = number;
    return Status();
  };
  if (name == "method" || name == "model") return read_method(name, value, config);
  if (name == "num_speculative_tokens") return read_integer(name, value, config.num_speculative_tokens);
  if (name == "quantization") return read_quantization(name, value, config.quantization);
  if (name == "max_model_len") return read_integer(name, value, config.max_model_len);
  if (name == "prompt_lookup_min") return optional_integer(config.prompt_lookup_min);
  if (name == "prompt_lookup_max") return optional_integer(config.prompt_lookup_max);
  if (name == "suffix_decoding_max_tree_depth") return read_integer(name, value, config.suffix_decoding_max_tree_depth);
  if (name == "suffix_decoding_max_cached_requests") {
    return read_integer(name, value, config.suffix_decoding_max_cached_requests);
  }
  if (name == "suffix_decoding_max_spec_factor") return read_real(name, value, config.suffix_decoding_max_spec_factor);
  if (name == "suffix_decoding_min_token_prob") return read_real(name, value, config.suffix_decoding_min_token_prob);
  if (name == "disable_by_batch_size") return read_integer(name, value, config.disable_by_batch_size);
  if (name == "rejection_sample_method" || name == "acceptance_method") {
    return read_acceptance(name, value, config.acceptance);
  }
  if (name == "posterior_threshold") return read_real(name, value, config.acceptance.posterior_threshold);
  if (name == "posterior_alpha") return read_real(name, value, config.acceptance.posterior_alpha);
  if (name == "always") {
    if (!value.is_bool()) return wrong(name, "must be true or false");
    config.always = value.get_bool();
    return {};
  }
  if (name == "draft_tensor_parallel_size" && value.is_int64() && value.get_int64() == 1) return {};
  for (const RefusedMember& one : kRefusedMembers) {
    if (one.name == name) return wrong(name, one.why);
  }
  return invalid_argument(
      "{}\"{}\" is not known; known: method, model, quantization, max_model_len, num_speculative_tokens, "
      "prompt_lookup_min, prompt_lookup_max, "
      "suffix_decoding_max_tree_depth, suffix_decoding_max_cached_requests, suffix_decoding_max_spec_factor, "
      "suffix_decoding_min_token_prob, disable_by_batch_size, rejection_sample_method, posterior_threshold, "
      "posterior_alpha, always",
      kPrefix, name);
}

}  // namespace

Result<SpeculativeConfig> read_speculative_config(const json::object& object) {
  SpeculativeConfig config;
  for (const auto& [name, value] : object) {
    if (!asks_for_nothing(value)) QUIRE_RETURN_IF_ERROR(read_member(name, value, config));
  }
  const bool names_method = object.contains("method") && !object.at("method").is_null();
  if (!names_method && config.method == SpeculativeMethod::kNone) {
    if (config.prompt_lookup_min || config.prompt_lookup_max) config.method = SpeculativeMethod::kNgram;
    if (!config.model.empty()) config.method = SpeculativeMethod::kDraftModel;
  }
  QUIRE_RETURN_IF_ERROR(validate(config));
  return config;
}

}  // namespace quire::engine
