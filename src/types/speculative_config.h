// What a user decides about speculation (docs/speculation.md). Names and defaults are vLLM's where vLLM has them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "types/engine_choices.h"

namespace quire {

// When a guess becomes a token of the answer. Greedy requests come to the same by all methods.
struct AcceptanceRule {
  AcceptanceMethod method = AcceptanceMethod::kExact;
  // Of kTypical: a guess is taken whose probability is more than min(threshold, alpha * exp(-entropy)).
  double posterior_threshold = 0.09;
  double posterior_alpha = 0.3;

  bool operator==(const AcceptanceRule&) const = default;
};

struct SpeculativeConfig {
  SpeculativeMethod method = SpeculativeMethod::kNone;
  // That guesses: of kDraftModel, kEagle, kEagle3, kMedusa and kDflash, or of kNgram and kSuffix where these say
  // nothing. Of kMtp the checkpoint that has the layer; empty: the model's own.
  std::string model;
  // Of a sequence in a step, at most; 0: as many as the method can use, of kDflash as the head's blocks have room for.
  int32_t num_speculative_tokens = 0;
  // Of `model`: what its weights are rounded to at load, and the longest text that it guesses for (0: as long as both
  // models' can be).
  Quantization quantization = Quantization::kNone;
  int64_t max_model_len = 0;
  // Of kNgram: how many of the last tokens are looked for. Unset, both: 5; one: the other.
  std::optional<int32_t> prompt_lookup_min;
  std::optional<int32_t> prompt_lookup_max;
  // Of kSuffix.
  int32_t suffix_decoding_max_tree_depth = 24;           // tokens of a match, and of a guess
  int32_t suffix_decoding_max_cached_requests = 10'000;  // answers that are remembered; 0: none
  double suffix_decoding_max_spec_factor = 1.0;          // guesses for each token that matched
  double suffix_decoding_min_token_prob = 0.1;           // of a guess, by the votes
  int32_t disable_by_batch_size = 0;                     // where more sequences sample in a step, no drafts; 0: off
  AcceptanceRule acceptance;
  bool always = false;  // draft as much as there is, whatever a row costs: for tests and measurements

  bool operator==(const SpeculativeConfig&) const = default;
};

// Errors: invalid_argument naming the member.
Status validate(const AcceptanceRule& rule);
Status validate(const SpeculativeConfig& config);

// Whether an answer may depend on what was guessed, so that requests whose answers must repeat are not guessed for.
bool changes_answers(const SpeculativeConfig& config);

// Whether a head guesses out of the model's own states.
bool is_head(SpeculativeMethod method);
// Whether a head or another model guesses, so that weights are held beside the model's and computed between its steps.
bool drafts_with_weights(const SpeculativeConfig& config);

constexpr int32_t kMostSpeculativeTokens = 64;  // sched::kMostDraftTokens

// The draft tokens that a sequence may have in a step, with what is left out; a head may have a number of its own
// (MemoryPlan::most_draft_tokens).
int32_t most_draft_tokens(const SpeculativeConfig& config);
// The same of models with recurrent layers, beside whose states there is room for what so many draft tokens leave; 0
// where nobody drafts.
int32_t most_state_drafts(const SpeculativeConfig& config);

}  // namespace quire
