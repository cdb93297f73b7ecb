#include "types/sampling_params.h"

#include <cmath>

namespace quire {
namespace {

Status out_of_range(const char* field, const char* range, double found) {
  return invalid_argument("{} must be {}, got {}.", field, range, found).with_param(field);
}

Status check_ids(const char* field, TokenId id, int64_t vocab_size) {
  if (id >= 0 && id < vocab_size) return {};
  return invalid_argument("{} contains token id {}, which is not in the vocabulary of {} tokens (ids 0 to {}).", field,
                          id, vocab_size, vocab_size - 1)
      .with_param(field);
}

Status check_logprobs(const char* field, const std::optional<int32_t>& count, int32_t most) {
  if (!count) return {};
  if (*count < 0) return out_of_range(field, "non-negative", *count);
  if (*count > most) {
    return invalid_argument("{} is {}, which is more than the {} that this server allows (--max-logprobs).", field,
                            *count, most)
        .with_param(field);
  }
  return {};
}

}  // namespace

Status validate(const SamplingParams& p, const SamplingLimits& limits) {
  // Written so that NaN fails every test.
  if (!(p.temperature >= 0.0f && p.temperature <= 2.0f)) return out_of_range("temperature", "in [0, 2]", p.temperature);
  if (!(p.top_p > 0.0f && p.top_p <= 1.0f)) return out_of_range("top_p", "in (0, 1]", p.top_p);
  if (p.top_k < -1) return out_of_range("top_k", "-1 or 0 (off), or at least 1", p.top_k);
  if (!(p.min_p >= 0.0f && p.min_p <= 1.0f)) return out_of_range("min_p", "in [0, 1]", p.min_p);
  if (!(p.presence_penalty >= -2.0f && p.presence_penalty <= 2.0f)) {
    return out_of_range("presence_penalty", "in [-2, 2]", p.presence_penalty);
  }
  if (!(p.frequency_penalty >= -2.0f && p.frequency_penalty <= 2.0f)) {
    return out_of_range("frequency_penalty", "in [-2, 2]", p.frequency_penalty);
  }
  if (!(p.repetition_penalty > 0.0f && std::isfinite(p.repetition_penalty))) {
    return out_of_range("repetition_penalty", "greater than zero and finite", p.repetition_penalty);
  }
  if (p.max_tokens && *p.max_tokens < 0) return out_of_range("max_tokens", "at least 0", *p.max_tokens);
  if (p.min_tokens < 0) return out_of_range("min_tokens", "at least 0", p.min_tokens);
  if (p.max_tokens && p.min_tokens > *p.max_tokens) {
    return invalid_argument("min_tokens must not exceed max_tokens={}, got {}.", *p.max_tokens, p.min_tokens)
        .with_param("min_tokens");
  }
  for (const std::string& stop : p.stop) {
    if (stop.empty()) return invalid_argument("stop cannot contain an empty string.").with_param("stop");
  }
  for (TokenId id : p.stop_token_ids) QUIRE_RETURN_IF_ERROR(check_ids("stop_token_ids", id, limits.vocab_size));
  for (const auto& [id, bias] : p.logit_bias) {
    QUIRE_RETURN_IF_ERROR(check_ids("logit_bias", id, limits.vocab_size));
    if (!std::isfinite(bias)) return out_of_range("logit_bias", "finite", bias);
  }
  QUIRE_RETURN_IF_ERROR(check_logprobs("logprobs", p.logprobs, limits.max_logprobs));
  return check_logprobs("prompt_logprobs", p.prompt_logprobs, limits.max_logprobs);
}

}  // namespace quire
