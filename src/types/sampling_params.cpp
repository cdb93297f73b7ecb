#include "types/sampling_params.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>

namespace quire {
namespace {

Status out_of_range(const char* field, const char* range, double found) {
  return invalid_argument("{} must be {}, got {}.", field, range, found).with_param(field);
}

Status check_range(const char* field, float found, float lowest, float highest) {
  if (found >= lowest && found <= highest) return {};  // false for NaN
  return out_of_range(field, fmt::format("in [{}, {}]", lowest, highest).c_str(), found);
}

// (0, 1]
Status check_share(const char* field, float found) {
  if (found > 0.0f && found <= 1.0f) return {};
  return out_of_range(field, "in (0, 1]", found);
}

Status check_positive(const char* field, float found) {
  if (found > 0.0f && std::isfinite(found)) return {};
  return out_of_range(field, "greater than zero and finite", found);
}

Status check_finite_at_least(const char* field, float found, float lowest) {
  if (found >= lowest && std::isfinite(found)) return {};
  return out_of_range(field, fmt::format("at least {} and finite", lowest).c_str(), found);
}

Status check_id(const char* field, TokenId id, int64_t vocab_size) {
  if (id >= 0 && id < vocab_size) return {};
  return invalid_argument("{} contains token id {}, which is not in the vocabulary of {} tokens (ids 0 to {}).", field,
                          id, vocab_size, vocab_size - 1)
      .with_param(field);
}

Status check_ids(const char* field, std::span<const TokenId> ids, int64_t vocab_size) {
  for (TokenId id : ids) QUIRE_RETURN_IF_ERROR(check_id(field, id, vocab_size));
  return {};
}

Status check_set(const char* field, const TokenSet& ids, int64_t vocab_size) {
  if (ids.empty()) return {};
  QUIRE_RETURN_IF_ERROR(check_id(field, ids.ids().front(), vocab_size));
  return check_id(field, ids.ids().back(), vocab_size);
}

// The tokens of what a request gives as text: an error names the text's field.
Status check_sequences(const char* field, const std::vector<std::vector<TokenId>>& sequences, int64_t vocab_size) {
  for (const std::vector<TokenId>& sequence : sequences) {
    if (sequence.empty()) {
      return invalid_argument("{} contains a text that is not a single token long.", field).with_param(field);
    }
    QUIRE_RETURN_IF_ERROR(check_ids(field, sequence, vocab_size));
  }
  return {};
}

Status check_not_empty(const char* field, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    if (text.empty()) return invalid_argument("{} cannot contain an empty string.", field).with_param(field);
  }
  return {};
}

Status check_logprobs(const char* field, const std::optional<int32_t>& count, const SamplingLimits& limits) {
  if (!count) return {};
  if (*count < -1) return out_of_range(field, "non-negative, or -1 for the whole vocabulary", *count);
  const int64_t most = limits.max_logprobs == -1 ? limits.vocab_size : limits.max_logprobs;
  const int64_t wanted = *count == -1 ? limits.vocab_size : *count;
  if (wanted <= most) return {};
  if (*count == -1) {
    return invalid_argument(
               "{} is -1, the whole vocabulary of {} tokens, which is more than the {} that this server "
               "allows (--max-logprobs).",
               field, wanted, most)
        .with_param(field);
  }
  return invalid_argument("{} is {}, which is more than the {} that this server allows (--max-logprobs).", field,
                          wanted, most)
      .with_param(field);
}

Status check_num_sequences(const SamplingParams& p, const SamplingLimits& limits) {
  const auto check = [&](const char* field, int32_t found, int32_t least) -> Status {
    if (found >= least && found <= limits.max_sequences) return {};
    const std::string range =
        fmt::format("in [{}, {}]{}", least, limits.max_sequences, least > 1 ? ", n at least" : "");
    return out_of_range(field, range.c_str(), found);
  };
  QUIRE_RETURN_IF_ERROR(check("n", p.n, 1));
  if (p.best_of) QUIRE_RETURN_IF_ERROR(check("best_of", *p.best_of, p.n));
  if (p.beam_width) QUIRE_RETURN_IF_ERROR(check("beam_width", *p.beam_width, p.n));
  if (p.greedy() && !p.use_beam_search && p.num_sequences() > 1) {
    const char* field = p.n > 1 ? "n" : "best_of";
    return invalid_argument(
               "{} must be 1 when using greedy sampling (temperature 0), got {}: all answers would be the "
               "same.",
               field, p.num_sequences())
        .with_param(field);
  }
  return {};
}

Status check_distribution(const SamplingParams& p) {
  QUIRE_RETURN_IF_ERROR(check_range("temperature", p.temperature, 0.0f, 2.0f));
  QUIRE_RETURN_IF_ERROR(check_share("top_p", p.top_p));
  if (p.top_k < -1) return out_of_range("top_k", "-1 or 0 (off), or at least 1", p.top_k);
  QUIRE_RETURN_IF_ERROR(check_range("min_p", p.min_p, 0.0f, 1.0f));
  QUIRE_RETURN_IF_ERROR(check_range("presence_penalty", p.presence_penalty, -2.0f, 2.0f));
  QUIRE_RETURN_IF_ERROR(check_range("frequency_penalty", p.frequency_penalty, -2.0f, 2.0f));
  QUIRE_RETURN_IF_ERROR(check_positive("repetition_penalty", p.repetition_penalty));
  QUIRE_RETURN_IF_ERROR(check_share("typical_p", p.typical_p));
  if (!std::isfinite(p.top_n_sigma)) return out_of_range("top_n_sigma", "finite", p.top_n_sigma);
  QUIRE_RETURN_IF_ERROR(check_finite_at_least("dynatemp_range", p.dynatemp_range, 0.0f));
  QUIRE_RETURN_IF_ERROR(check_positive("dynatemp_exponent", p.dynatemp_exponent));
  QUIRE_RETURN_IF_ERROR(check_range("xtc_probability", p.xtc_probability, 0.0f, 1.0f));
  QUIRE_RETURN_IF_ERROR(check_range("xtc_threshold", p.xtc_threshold, 0.0f, 1.0f));
  if (p.mirostat < 0 || p.mirostat > 2) return out_of_range("mirostat", "0 (off), 1 or 2", p.mirostat);
  QUIRE_RETURN_IF_ERROR(check_positive("mirostat_tau", p.mirostat_tau));
  return check_range("mirostat_eta", p.mirostat_eta, 0.0f, 1.0f);
}

Status check_dry(const SamplingParams& p, const SamplingLimits& limits) {
  QUIRE_RETURN_IF_ERROR(check_finite_at_least("dry_multiplier", p.dry_multiplier, 0.0f));
  QUIRE_RETURN_IF_ERROR(check_finite_at_least("dry_base", p.dry_base, 1.0f));
  if (p.dry_allowed_length < 0) return out_of_range("dry_allowed_length", "at least 0", p.dry_allowed_length);
  if (p.dry_penalty_last_n < -1) {
    return out_of_range("dry_penalty_last_n", "-1 (all tokens), 0 (off), or at least 1", p.dry_penalty_last_n);
  }
  QUIRE_RETURN_IF_ERROR(check_not_empty("dry_sequence_breakers", p.dry_sequence_breakers));
  if (p.dry_sequence_breakers.size() > static_cast<size_t>(limits.max_dry_sequence_breakers)) {
    return invalid_argument("dry_sequence_breakers contains {} texts, at most {} are allowed.",
                            p.dry_sequence_breakers.size(), limits.max_dry_sequence_breakers)
        .with_param("dry_sequence_breakers");
  }
  return {};
}

Status check_words(const SamplingParams& p, const SamplingLimits& limits) {
  for (const auto& [id, bias] : p.logit_bias) {
    QUIRE_RETURN_IF_ERROR(check_id("logit_bias", id, limits.vocab_size));
    if (!std::isfinite(bias)) return out_of_range("logit_bias", "finite", bias);
  }
  if (p.allowed_token_ids) {
    if (p.allowed_token_ids->empty()) {
      return invalid_argument(
                 "allowed_token_ids must not be empty: no token could be chosen. Leave it out to allow "
                 "all.")
          .with_param("allowed_token_ids");
    }
    QUIRE_RETURN_IF_ERROR(check_set("allowed_token_ids", *p.allowed_token_ids, limits.vocab_size));
  }
  QUIRE_RETURN_IF_ERROR(check_not_empty("bad_words", p.bad_words));
  if (p.bad_words.size() > static_cast<size_t>(limits.max_bad_words)) {
    return invalid_argument("bad_words has {} texts, at most {} are allowed.", p.bad_words.size(), limits.max_bad_words)
        .with_param("bad_words");
  }
  return check_bad_words_ids(p, limits);
}

Status check_repetition_detection(const RepetitionDetection& detection, const SamplingLimits& limits) {
  const char* field = "repetition_detection";
  const int32_t most = limits.max_repetition_pattern_size;
  if (detection.max_pattern_size < 0 || detection.max_pattern_size > most) {
    return invalid_argument("{}.max_pattern_size must be in [0, {}], got {}.", field, most, detection.max_pattern_size)
        .with_param(field);
  }
  if (detection.min_pattern_size < 0 || detection.min_pattern_size > detection.max_pattern_size) {
    return invalid_argument("{}.min_pattern_size must be in [0, max_pattern_size={}], got {}.", field,
                            detection.max_pattern_size, detection.min_pattern_size)
        .with_param(field);
  }
  if (detection.max_pattern_size > 0 && detection.min_count < 2) {
    return invalid_argument("{}.min_count must be at least 2, got {}. Set max_pattern_size to 0 to switch it off.",
                            field, detection.min_count)
        .with_param(field);
  }
  return {};
}

Status check_end(const SamplingParams& p, const SamplingLimits& limits) {
  if (p.max_tokens && *p.max_tokens < 0) return out_of_range("max_tokens", "at least 0", *p.max_tokens);
  if (p.min_tokens < 0) return out_of_range("min_tokens", "at least 0", p.min_tokens);
  if (p.max_tokens && p.min_tokens > *p.max_tokens) {
    return invalid_argument("min_tokens must not exceed max_tokens={}, got {}.", *p.max_tokens, p.min_tokens)
        .with_param("min_tokens");
  }
  QUIRE_RETURN_IF_ERROR(check_not_empty("stop", p.stop));
  if (!p.stop.empty() && !p.detokenize) {
    return invalid_argument("stop is matched on text, so it needs detokenize to be true.").with_param("stop");
  }
  QUIRE_RETURN_IF_ERROR(check_set("stop_token_ids", p.stop_token_ids, limits.vocab_size));
  if (p.repetition_detection) QUIRE_RETURN_IF_ERROR(check_repetition_detection(*p.repetition_detection, limits));
  if (p.structured_output && p.ignore_eos) {
    return invalid_argument("ignore_eos contradicts structured output: nothing may follow what is complete.")
        .with_param("ignore_eos");
  }
  return {};
}

// A beam search looks for the most probable answers: what only shapes a draw contradicts it, and the other way round.
Status check_beam_search(const SamplingParams& p) {
  if (!std::isfinite(p.length_penalty)) return out_of_range("length_penalty", "finite", p.length_penalty);
  struct Choice {
    const char* field;
    bool made;
  };
  if (!p.use_beam_search) {
    const std::array<Choice, 3> choices = {{{"beam_width", p.beam_width.has_value()},
                                            {"length_penalty", p.length_penalty != 1.0f},
                                            {"early_stopping", p.early_stopping != EarlyStopping::kFalse}}};
    for (const Choice& choice : choices) {
      if (!choice.made) continue;
      return invalid_argument("{} has an effect in a beam search only: leave it out or set use_beam_search.",
                              choice.field)
          .with_param(choice.field);
    }
    return {};
  }
  const std::array<Choice, 11> choices = {{{"top_p", p.top_p < 1.0f},
                                           {"top_k", p.top_k > 0},
                                           {"min_p", p.min_p > 0.0f},
                                           {"typical_p", p.typical_p < 1.0f},
                                           {"top_n_sigma", p.top_n_sigma > 0.0f},
                                           {"dynatemp_range", p.dynatemp_range > 0.0f},
                                           {"xtc_probability", p.xtc_probability > 0.0f},
                                           {"mirostat", p.mirostat != 0},
                                           {"dry_multiplier", p.dry_multiplier > 0.0f},
                                           {"structured_outputs", p.structured_output.has_value()},
                                           {"repetition_detection", p.repetition_detection.has_value()}}};
  for (const Choice& choice : choices) {
    if (!choice.made) continue;
    const bool is_structure = p.structured_output && choice.field == std::string_view("structured_outputs");
    return invalid_argument(
               "{}{} shapes how a token is drawn, and a beam search (use_beam_search) draws none: leave one "
               "of the two out.",
               choice.field, is_structure ? " (also by response_format or tools)" : "")
        .with_param(choice.field);
  }
  return {};
}

}  // namespace

Status validate(const SamplingParams& params, const SamplingLimits& limits) {
  QUIRE_RETURN_IF_ERROR(check_distribution(params));
  QUIRE_RETURN_IF_ERROR(check_num_sequences(params, limits));
  QUIRE_RETURN_IF_ERROR(check_dry(params, limits));
  QUIRE_RETURN_IF_ERROR(check_words(params, limits));
  QUIRE_RETURN_IF_ERROR(check_end(params, limits));
  QUIRE_RETURN_IF_ERROR(check_beam_search(params));
  QUIRE_RETURN_IF_ERROR(check_logprobs("logprobs", params.logprobs, limits));
  QUIRE_RETURN_IF_ERROR(check_logprobs("prompt_logprobs", params.prompt_logprobs, limits));
  if (params.truncate_prompt_tokens && *params.truncate_prompt_tokens != -1 && *params.truncate_prompt_tokens < 1) {
    return out_of_range("truncate_prompt_tokens", "-1 (what the context holds) or at least 1",
                        *params.truncate_prompt_tokens);
  }
  return {};
}

Status check_bad_words_ids(const SamplingParams& params, const SamplingLimits& limits) {
  if (params.bad_words_ids.size() > static_cast<size_t>(limits.max_bad_words)) {
    return invalid_argument("bad_words makes {} token sequences, at most {} are allowed.", params.bad_words_ids.size(),
                            limits.max_bad_words)
        .with_param("bad_words");
  }
  // Every token of theirs may have to be compared at every step.
  const size_t most_tokens = size_t{16} * static_cast<size_t>(limits.max_bad_words);
  size_t num_tokens = 0;
  for (const std::vector<TokenId>& word : params.bad_words_ids) num_tokens += word.size();
  if (num_tokens > most_tokens) {
    return invalid_argument("bad_words is {} tokens long, at most {} are allowed.", num_tokens, most_tokens)
        .with_param("bad_words");
  }
  return check_sequences("bad_words", params.bad_words_ids, limits.vocab_size);
}

Status check_leaves_a_token(const SamplingParams& params, const std::vector<TokenId>& eos_ids, int64_t vocab_size) {
  if (params.max_tokens && *params.max_tokens == 0) return {};  // none is chosen
  std::vector<TokenId> words;                                   // of one token: never chosen
  for (const std::vector<TokenId>& word : params.bad_words_ids) {
    if (word.size() == 1) words.push_back(word.front());
  }
  const TokenSet bad = std::move(words);
  const bool may_not_end = params.min_tokens > 0;
  const auto forbidden = [&](TokenId id) {
    if (bad.contains(id)) return true;
    if (!may_not_end) return false;
    return params.stop_token_ids.contains(id) || (!params.ignore_eos && std::ranges::count(eos_ids, id) > 0);
  };
  if (params.allowed_token_ids) {
    const bool none = std::ranges::all_of(*params.allowed_token_ids, forbidden);
    if (!none) return {};
    return invalid_argument(
               "no token could be chosen: every one of the {} in allowed_token_ids is forbidden by bad_words, or ends "
               "the answer before it has min_tokens={}. Allow others, or lower min_tokens.",
               params.allowed_token_ids->size(), params.min_tokens)
        .with_param("allowed_token_ids");
  }
  const size_t most_forbidden =
      bad.size() + (may_not_end ? params.stop_token_ids.size() + (params.ignore_eos ? 0 : eos_ids.size()) : 0);
  if (static_cast<int64_t>(most_forbidden) < vocab_size) return {};
  for (TokenId id = 0; id < vocab_size; ++id) {
    if (!forbidden(id)) return {};
  }
  const bool by_words = params.stop_token_ids.empty();
  return invalid_argument(
             "no token could be chosen: all {} of the vocabulary are forbidden by bad_words, or end the answer before "
             "it has min_tokens={}. Leave some of {} out.",
             vocab_size, params.min_tokens, by_words ? "bad_words" : "stop_token_ids")
      .with_param(by_words ? "bad_words" : "stop_token_ids");
}

int64_t heap_bytes(const SamplingParams& params) {
  size_t bytes = 0;
  const auto add_texts = [&bytes](const std::vector<std::string>& texts) {
    bytes += texts.capacity() * sizeof(std::string);
    for (const std::string& text : texts) {
      if (text.capacity() > std::string().capacity()) bytes += text.capacity() + 1;
    }
  };
  add_texts(params.dry_sequence_breakers);
  add_texts(params.bad_words);
  add_texts(params.stop);
  bytes += params.logit_bias.capacity() * sizeof(params.logit_bias.front());
  bytes += params.bad_words_ids.capacity() * sizeof(params.bad_words_ids.front());
  for (const std::vector<TokenId>& word : params.bad_words_ids) bytes += word.capacity() * sizeof(TokenId);
  auto total = static_cast<int64_t>(bytes) + params.stop_token_ids.heap_bytes();
  if (params.allowed_token_ids) total += params.allowed_token_ids->heap_bytes();
  if (params.dry_breakers != nullptr) total += params.dry_breakers->heap_bytes();
  return total;
}

}  // namespace quire
