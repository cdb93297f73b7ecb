#include "runner/row_outcome.h"

#include <utility>

#include "sampling/logprobs.h"

namespace quire::runner {
namespace {

RowOutcome sample_row(const LogitRow& row, const AcceptanceRule& rule, SequenceState& state, std::span<float> logits,
                      sampling::SamplingScratch& scratch) {
  RowOutcome outcome;
  if (!state.fault.ok()) {
    outcome.error = state.fault;
    return outcome;
  }
  if (row.num_candidates > 0) {
    auto candidates = state.sampler.beam_candidates(logits, static_cast<size_t>(row.num_candidates), scratch);
    outcome.error = candidates.status();
    if (candidates.ok()) outcome.candidates = std::move(*candidates);
    return outcome;
  }
  if (row.target != kNoToken) {
    auto scored = sampling::position_logprobs(logits, row.target, *state.params->prompt_logprobs);
    outcome.error = scored.status();
    if (scored.ok()) outcome.logprobs = std::move(*scored);
    return outcome;
  }
  const sampling::Guess guess = {.token = row.draft, .drawn_from = row.drawn_from, .rule = rule};
  auto sampled = state.sampler.sample(logits, scratch, row.draft == kNoToken ? nullptr : &guess);
  outcome.error = sampled.status();
  if (sampled.ok()) {
    outcome.token = sampled->id;
    outcome.logprobs = std::move(sampled->logprobs);
  }
  return outcome;
}

}  // namespace

RowOutcome consume_row(const LogitRow& row, const AcceptanceRule& rule, SequenceState& state, std::span<float> logits,
                       sampling::SamplingScratch& scratch) {
  if (row.draft_row < 0) return sample_row(row, rule, state, logits, scratch);
  if (row.draft_row == 0) state.draft_failed = false;
  RowOutcome outcome;
  outcome.is_void = state.draft_failed;
  if (outcome.is_void) return outcome;
  outcome = sample_row(row, rule, state, logits, scratch);
  state.draft_failed = !outcome.error.ok() || outcome.token != row.draft;
  // What is wrong behind an accepted token is the next step's to find: the tokens before it are told first.
  if (row.draft_row > 0 && !outcome.error.ok()) {
    outcome = {};
    outcome.is_void = true;
  }
  return outcome;
}

// The outcome becomes the sequence's state and the answer to the engine.
void settle(const LogitRow& row, RowOutcome& outcome, SequenceState& state, SequenceResult& sequence) {
  if (!sequence.error.ok() || outcome.is_void) return;
  if (!outcome.error.ok()) {
    state.fault = outcome.error;
    state.tokens.push_back(0);
    sequence.error = std::move(outcome.error);
  } else if (row.num_candidates > 0) {
    sequence.candidates = std::move(outcome.candidates);
  } else if (row.target != kNoToken) {
    sequence.prompt_logprobs.push_back(std::move(*outcome.logprobs));
  } else {
    state.tokens.push_back(outcome.token);
    sequence.tokens.push_back(outcome.token);
    if (outcome.logprobs) sequence.logprobs.push_back(std::move(*outcome.logprobs));
  }
}

}  // namespace quire::runner
