// How the tokens of one answer are chosen. Field names, defaults and ranges are vLLM's
// SamplingParams; the samplers that vLLM does not have bear the names of llama.cpp's server.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "types/dry_breakers.h"
#include "types/ids.h"
#include "types/structured_output.h"
#include "types/token_set.h"

namespace quire {

// When a beam search stops looking (transformers' early_stopping).
enum class EarlyStopping : uint8_t {
  kFalse,  // when no open beam can beat the worst finished one, as estimated at its present length
  kTrue,   // as soon as there are as many finished answers as beams
  kNever,  // when no open beam can beat the worst finished one at any length
};

// Ends an answer that goes round in circles: when its last tokens are a pattern of min_pattern_size
// to max_pattern_size tokens, min_count times in a row (types/repetition.h).
struct RepetitionDetection {
  int32_t max_pattern_size = 0;  // 0: off; at most SamplingLimits::max_repetition_pattern_size
  int32_t min_pattern_size = 0;  // [0, max_pattern_size]; 0 counts as 1
  int32_t min_count = 0;         // >= 2, unless off
};

// Plain data: what is shared in it is immutable and goes along as a value. The compiled constraint of an answer is not
// in it (types/constraint_table.h).
struct SamplingParams {
  // How many answers.
  int32_t n = 1;                   // [1, SamplingLimits::max_sequences]; 1 when greedy
  std::optional<int32_t> best_of;  // [n, max_sequences]: so many are made, the n of the best mean logprob returned

  // The distribution. sampling/sequence_sampler.h gives the order of the steps.
  float temperature = 1.0f;         // [0, 2]; under 1e-5: greedy
  float top_p = 1.0f;               // (0, 1]
  int32_t top_k = 0;                // 0 or -1: off
  float min_p = 0.0f;               // [0, 1]
  float presence_penalty = 0.0f;    // [-2, 2]
  float frequency_penalty = 0.0f;   // [-2, 2]
  float repetition_penalty = 1.0f;  // > 0
  std::optional<uint64_t> seed;

  float typical_p = 1.0f;          // (0, 1]; 1: off
  float top_n_sigma = -1.0f;       // finite; 0 or less: off
  float dynatemp_range = 0.0f;     // >= 0: temperature moves in [temperature - range, temperature + range]; 0: off
  float dynatemp_exponent = 1.0f;  // > 0
  float xtc_probability = 0.0f;    // [0, 1]; 0: off
  float xtc_threshold = 0.1f;      // [0, 1]; above 0.5: off

  // Replaces every filter (top_k, top_p, min_p, typical_p, top_n_sigma, xtc) and the dynamic temperature: they are
  // ignored beside it, as llama.cpp does.
  int32_t mirostat = 0;       // 0: off, 1, 2: version
  float mirostat_tau = 5.0f;  // > 0: target surprise, bits
  float mirostat_eta = 0.1f;  // [0, 1]: learning rate

  float dry_multiplier = 0.0f;      // >= 0; 0: off
  float dry_base = 1.75f;           // >= 1
  int32_t dry_allowed_length = 2;   // >= 0: repeated runs up to one less are free
  int32_t dry_penalty_last_n = -1;  // >= -1: how many tokens are looked at; -1: all, 0: off
  std::vector<std::string> dry_sequence_breakers = {"\n", ":", "\"", "*"};
  // The breakers as tokens: for each breaker every token whose text contains it, and the tokens of the breaker by
  // itself. Filled in where there is a tokenizer; nullptr: none.
  std::shared_ptr<const DryBreakers> dry_breakers;

  // What may be said.
  std::vector<std::pair<TokenId, float>> logit_bias;  // clamped to [-100, 100]
  std::optional<TokenSet> allowed_token_ids;          // nothing else; not empty
  std::vector<std::string> bad_words;                 // none empty
  // The bad words as tokens, none of them empty: each word at the beginning of a text and after a space. Filled in
  // where there is a tokenizer.
  std::vector<std::vector<TokenId>> bad_words_ids;
  // The structured output that is asked for. Not together with a beam search or ignore_eos: where the constraint is
  // complete, nothing but the end may follow.
  std::optional<StructuredOutput> structured_output;

  // When it ends.
  std::optional<int32_t> max_tokens = 16;  // nullopt: what the context leaves
  int32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;  // matched on text, by the output processor; needs detokenize
  TokenSet stop_token_ids;
  bool include_stop_str_in_output = false;
  std::optional<RepetitionDetection> repetition_detection;

  // Beam search: nothing is drawn, so every filter, mirostat, dry and repetition_detection must be off; the temperature
  // has no effect. Penalties, bans, bias and min_tokens apply to the scores.
  bool use_beam_search = false;
  std::optional<int32_t> beam_width;  // [n, max_sequences]; nullopt: best_of or n
  float length_penalty = 1.0f;        // finite: a finished beam's score is its sum of logprobs / length^length_penalty
  EarlyStopping early_stopping = EarlyStopping::kFalse;

  // What comes back. -1: of the whole vocabulary.
  std::optional<int32_t> logprobs;         // how many alternatives beside the chosen token; 0: the chosen one only
  std::optional<int32_t> prompt_logprobs;  // the same for every prompt token but the first
  bool skip_special_tokens = true;
  bool spaces_between_special_tokens = true;
  bool detokenize = true;
  bool deterministic = false;  // a receipt: a hash of the answer's tokens and logprobs

  // Of the prompt only the last so many tokens are kept (>= 1); -1: as many as the context holds.
  std::optional<int32_t> truncate_prompt_tokens;

  bool greedy() const { return temperature < 1e-5f; }
  int32_t num_beams() const { return beam_width.value_or(best_of.value_or(n)); }
  // How many sequences run at once for this request.
  int32_t num_sequences() const { return use_beam_search ? num_beams() : best_of.value_or(n); }
};

// The bounds that do not come from the parameters themselves.
struct SamplingLimits {
  int64_t vocab_size = 0;
  int32_t max_logprobs = 20;  // -1: the whole vocabulary
  int32_t max_sequences = 128;
  int32_t max_bad_words = 1024;  // token sequences of bad_words, of 16 tokens each on average
  int32_t max_dry_sequence_breakers = 64;
  int32_t max_repetition_pattern_size = 2048;
};

// Checks ranges (NaN and infinity are out of every range), ids against the vocabulary, and what contradicts itself.
// Errors: invalid_argument with param() naming the field.
Status validate(const SamplingParams& params, const SamplingLimits& limits);

// Of these checks what bad_words_ids are bounded by, which validate() sees only where they have been found before it.
Status check_bad_words_ids(const SamplingParams& params, const SamplingLimits& limits);

// Whether there is a token that may be chosen at the very first step, beside allowed_token_ids, the end ids while
// min_tokens forbids them, and bad words of one token. O(ids of the lists, a vocabulary's at most). Errors:
// invalid_argument naming the list.
Status check_leaves_a_token(const SamplingParams& params, const std::vector<TokenId>& eos_ids, int64_t vocab_size);

// What the parameters hold on the heap: texts, lists, and sets in full, though others may share them.
int64_t heap_bytes(const SamplingParams& params);

}  // namespace quire
