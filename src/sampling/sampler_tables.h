// What a request's lists come to for the sampler: made once, shared by the request's answers and beams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "sampling/bad_words.h"
#include "sampling/dry.h"
#include "types/ids.h"
#include "types/sampling_params.h"
#include "types/token_constraint.h"
#include "types/token_set.h"

namespace quire::sampling {

struct SamplerTables {
  // eos_ids: banned until params->min_tokens, as params->stop_token_ids are. Ids outside [0, vocab_size) in either, in
  // logit_bias and at the end of bad words have no effect. REQUIRES: params set and validated; vocab_size >= 1.
  // masks: of the answer's constraint; nullptr: it has none.
  SamplerTables(std::shared_ptr<const SamplingParams> params, std::span<const TokenId> eos_ids, int64_t vocab_size,
                std::shared_ptr<const TokenMasks> masks = nullptr);
  SamplerTables(const SamplerTables&) = delete;  // its parts point at params and at each other
  SamplerTables& operator=(const SamplerTables&) = delete;

  const std::shared_ptr<const SamplingParams> params;
  const std::shared_ptr<const TokenMasks> masks;
  const int64_t vocab_size;
  TokenSet banned_until_min_tokens;               // empty without min_tokens
  std::vector<std::pair<TokenId, float>> biases;  // by token, none twice, clamped
  std::optional<BadWords> bad_words;
  std::optional<DryPenalty> dry;
  bool penalises = false;    // repetition, frequency or presence
  size_t history_reach = 0;  // how many of the last tokens of prompt and answer bad words and DRY look at

  // Beside params.
  int64_t heap_bytes() const;
};

}  // namespace quire::sampling
