// What one row of logits gives, and what that is to its sequence.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "runner/input_batch.h"
#include "sampling/scratch.h"

namespace quire::runner {

struct RowOutcome {
  Status error;
  bool refused = false;                      // by the constraint of the answer: there is no token yet
  bool is_void = false;                      // behind a draft token that was not what was sampled: there is nothing
  TokenId token = kNoToken;                  // sampled
  std::optional<PositionLogprobs> logprobs;  // of the sampled or of the prompt's token
  std::vector<TokenLogprob> candidates;      // of a beam
};

// Samples from the row, or scores it. Of a run with draft tokens the rows come one after the other: each samples its
// own token, with the draw that this token of the answer has in any case, as long as all before it sampled what was
// guessed. So a sampler never goes back, and by the exact rule an answer is the same whatever was guessed. logits:
// overwritten.
RowOutcome consume_row(const LogitRow& row, const AcceptanceRule& rule, SequenceState& state, std::span<float> logits,
                       sampling::SamplingScratch& scratch);

// The outcome becomes the sequence's state and the answer to the engine.
void settle(const LogitRow& row, RowOutcome& outcome, SequenceState& state, SequenceResult& sequence);

}  // namespace quire::runner
