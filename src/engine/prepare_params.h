// What has to happen to a request before the engine can use it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/breaker_sets.h"
#include "text/tokenizer.h"
#include "types/constraint_table.h"
#include "types/sampling_params.h"

namespace quire::engine {

// Parameters that are checked and have their texts' tokens: made once a request (Engine::prepare()), shared by its
// prompts and answers.
struct PreparedParams {
  std::shared_ptr<const SamplingParams> first;  // of a prompt's first answer
  std::shared_ptr<const SamplingParams>
      others;  // of its others: without prompt_logprobs. The same where there are none
  std::shared_ptr<const HeldConstraint> constraint;  // of structured_output; nullptr: there is none
  // False: log-probabilities are not what was asked for, but for a receipt or a ranking alone.
  bool shows_logprobs = true;

  // What they hold on the heap; sets that other requests share count in full.
  int64_t heap_bytes() const;
};

// Fills bad_words_ids and dry_breakers from their texts. tokenizer, breakers: nullptr without one. Errors:
// invalid_argument when there is no tokenizer, or when the bad words become too many sequences or tokens; no more of
// them are found then.
Status find_words(const text::Tokenizer* tokenizer, BreakerSets* breakers, const SamplingLimits& limits,
                  SamplingParams& params);

// Shares what find_words() has completed.
PreparedParams share_params(SamplingParams params, bool shows_logprobs);

// truncate_prompt_tokens: how many of the prompt's tokens are kept, its last ones.
int64_t num_kept_tokens(int64_t max_model_len, const SamplingParams& params, int64_t num_prompt_tokens);
void truncate_prompt(int64_t max_model_len, const SamplingParams& params, std::vector<TokenId>& prompt);

// Tokens of one answer at most: max_tokens, or what the prompt leaves of the context.
int64_t most_answer_tokens(const SamplingParams& params, int64_t num_prompt_tokens, int64_t max_model_len);

// The log-probabilities that a request may come to hold before its client has taken them, each with its alternatives
// and all that it is stored in.
struct LogprobBytes {
  int64_t prompt = 0;   // of the prompt's tokens, which come with the first answer
  int64_t answers = 0;  // of all answers' tokens; a beam search's include those of beams that are not returned
  int64_t sum() const { return prompt + answers; }
};
LogprobBytes most_logprob_bytes(const SamplingParams& params, int64_t num_prompt_tokens, int64_t vocab_size,
                                int64_t max_model_len);

}  // namespace quire::engine
