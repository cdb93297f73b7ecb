// What has to happen to a request before the engine can use it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"
#include "types/sampling_params.h"

namespace quire::engine {

// Fills bad_words_ids and dry_sequence_breaker_ids from their texts. Errors: invalid_argument when there is no
// tokenizer, or too many.
Status find_words(const text::Tokenizer* tokenizer, const SamplingLimits& limits, SamplingParams& params);

// truncate_prompt_tokens: keeps the last tokens of the prompt.
void truncate_prompt(int64_t max_model_len, const SamplingParams& params, std::vector<TokenId>& prompt);

// The log-probabilities that the request may come to hold before its client takes them: tokens of the prompt and of all
// answers, each with its alternatives.
int64_t most_logprob_bytes(const SamplingParams& params, int64_t num_prompt_tokens, int64_t vocab_size,
                           int64_t max_model_len);

}  // namespace quire::engine
