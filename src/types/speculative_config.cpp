#include "types/speculative_config.h"

#include <algorithm>

namespace quire {

int32_t most_draft_tokens(const SpeculativeConfig& config) {
  if (config.num_speculative_tokens > 0) return config.num_speculative_tokens;
  constexpr int32_t kUsual = 32;
  constexpr int32_t kUsualOfModel = 8;
  if (config.method == SpeculativeMethod::kDraftModel || is_head(config.method)) return kUsualOfModel;
  if (config.method != SpeculativeMethod::kSuffix) return kUsual;
  return std::clamp(config.suffix_decoding_max_tree_depth, 1, kMostSpeculativeTokens);
}

int32_t most_state_drafts(const SpeculativeConfig& config) {
  constexpr int32_t kUsual = 8;
  if (config.method == SpeculativeMethod::kNone) return 0;
  const int32_t most = most_draft_tokens(config);
  return config.num_speculative_tokens > 0 ? most : std::min(most, kUsual);
}

bool is_head(SpeculativeMethod method) {
  using enum SpeculativeMethod;
  return method == kEagle || method == kEagle3 || method == kMedusa || method == kMtp || method == kDflash;
}

bool drafts_with_weights(const SpeculativeConfig& config) {
  return !config.model.empty() || is_head(config.method);
}

bool changes_answers(const SpeculativeConfig& config) {
  // Only a model's guesses are drawn from a distribution; a guess that is certain is drawn and compared.
  const bool draws = config.acceptance.method == AcceptanceMethod::kRejection && drafts_with_weights(config);
  return draws || config.acceptance.method == AcceptanceMethod::kTypical;
}

Status validate(const AcceptanceRule& rule) {
  const AcceptanceRule plain;
  const bool is_plain =
      rule.posterior_threshold == plain.posterior_threshold && rule.posterior_alpha == plain.posterior_alpha;
  if (rule.method != AcceptanceMethod::kTypical && !is_plain) {
    return invalid_argument(
        "speculative_config: posterior_threshold and posterior_alpha are of acceptance method "
        "\"typical_acceptance_sampler\", which is \"{}\"",
        name(rule.method));
  }
  if (!(rule.posterior_threshold > 0 && rule.posterior_threshold < 1)) {
    return invalid_argument("speculative_config: posterior_threshold is {}, expected more than 0 and less than 1",
                            rule.posterior_threshold);
  }
  if (!(rule.posterior_alpha > 0 && rule.posterior_alpha <= 1)) {
    return invalid_argument("speculative_config: posterior_alpha is {}, expected more than 0 and at most 1",
                            rule.posterior_alpha);
  }
  return {};
}

Status validate(const SpeculativeConfig& config) {
  const auto outside = [](const char* field, int64_t value, int64_t least, int64_t most) {
    return invalid_argument("speculative_config: {} is {}, expected {} to {}", field, value, least, most);
  };
  const bool ngram = config.method == SpeculativeMethod::kNgram;
  const bool suffix = config.method == SpeculativeMethod::kSuffix;
  if (config.num_speculative_tokens < 0 || config.num_speculative_tokens > kMostSpeculativeTokens) {
    return outside("num_speculative_tokens", config.num_speculative_tokens, 0, kMostSpeculativeTokens);
  }
  if (config.method == SpeculativeMethod::kDraftModel && config.model.empty()) {
    return invalid_argument("speculative_config: method draft_model needs a model that drafts: name it as model");
  }
  if (is_head(config.method) && config.method != SpeculativeMethod::kMtp && config.model.empty()) {
    return invalid_argument("speculative_config: method {} needs a head: name its folder as model",
                            name(config.method));
  }
  if (config.method == SpeculativeMethod::kNone && !config.model.empty()) {
    return invalid_argument("speculative_config: model is \"{}\", but method is none", config.model);
  }
  const bool has_weights = drafts_with_weights(config);
  if (!has_weights && (config.quantization != Quantization::kNone || config.max_model_len != 0)) {
    return invalid_argument(
        "speculative_config: quantization and max_model_len are of a model that drafts; name it as model");
  }
  if (config.max_model_len < 0) return outside("max_model_len", config.max_model_len, 0, INT32_MAX);
  if (config.method == SpeculativeMethod::kMedusa && config.max_model_len != 0) {
    return invalid_argument(
        "speculative_config: max_model_len is of models and heads with keys and values; medusa has none");
  }
  if (!ngram && (config.prompt_lookup_min || config.prompt_lookup_max)) {
    return invalid_argument("speculative_config: prompt_lookup_min and prompt_lookup_max are of method \"ngram\"");
  }
  constexpr int32_t kLongestLookup = 64;
  for (const auto& [field, value] :
       {std::pair("prompt_lookup_min", config.prompt_lookup_min), {"prompt_lookup_max", config.prompt_lookup_max}}) {
    if (value && (*value < 1 || *value > kLongestLookup)) return outside(field, *value, 1, kLongestLookup);
  }
  if (config.prompt_lookup_min && config.prompt_lookup_max && *config.prompt_lookup_min > *config.prompt_lookup_max) {
    return invalid_argument("speculative_config: prompt_lookup_min is {}, more than prompt_lookup_max ({})",
                            *config.prompt_lookup_min, *config.prompt_lookup_max);
  }
  const SpeculativeConfig plain;
  const bool is_plain = config.suffix_decoding_max_tree_depth == plain.suffix_decoding_max_tree_depth &&
                        config.suffix_decoding_max_cached_requests == plain.suffix_decoding_max_cached_requests &&
                        config.suffix_decoding_max_spec_factor == plain.suffix_decoding_max_spec_factor &&
                        config.suffix_decoding_min_token_prob == plain.suffix_decoding_min_token_prob;
  if (!suffix && !is_plain) {
    return invalid_argument("speculative_config: members that begin with suffix_decoding are of method \"suffix\"");
  }
  if (config.suffix_decoding_max_tree_depth < 2 || config.suffix_decoding_max_tree_depth > 1024) {
    return outside("suffix_decoding_max_tree_depth", config.suffix_decoding_max_tree_depth, 2, 1024);
  }
  if (config.suffix_decoding_max_cached_requests < 0) {
    return outside("suffix_decoding_max_cached_requests", config.suffix_decoding_max_cached_requests, 0, INT32_MAX);
  }
  if (!(config.suffix_decoding_max_spec_factor > 0 && config.suffix_decoding_max_spec_factor <= 1024)) {
    return invalid_argument("speculative_config: suffix_decoding_max_spec_factor is {}, expected more than 0",
                            config.suffix_decoding_max_spec_factor);
  }
  if (!(config.suffix_decoding_min_token_prob >= 0 && config.suffix_decoding_min_token_prob <= 1)) {
    return invalid_argument("speculative_config: suffix_decoding_min_token_prob is {}, expected 0 to 1",
                            config.suffix_decoding_min_token_prob);
  }
  if (config.disable_by_batch_size < 0)
    return outside("disable_by_batch_size", config.disable_by_batch_size, 0, INT32_MAX);
  return validate(config.acceptance);
}

}  // namespace quire
