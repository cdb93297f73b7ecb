// A sequence as the scheduler sees it: what is asked for, how far it is, and which blocks it holds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kv/cache_manager.h"
#include "sched/draft_gain.h"
#include "sched/fair_share.h"
#include "types/draft_proposer.h"
#include "types/ids.h"
#include "types/sampling_params.h"
#include "types/step_plan.h"

namespace quire::sched {

struct SequenceRequest {
  SequenceId id = 0;                                 // beam search: the first of params->num_beams() consecutive ids
  std::vector<TokenId> prompt;                       // not empty
  std::shared_ptr<const SamplingParams> params;      // immutable, validated
  uint64_t seed = 0;                                 // of the random choices; handed on to the runner
  std::vector<TokenId> eos_ids;                      // the model's end ids; empty with ignore_eos
  std::shared_ptr<const HeldConstraint> constraint;  // of params->structured_output; kept until no plan needs it
  std::shared_ptr<const void> adapter;               // keeps that of context.lora_id in memory, for as long
  int32_t num_virtual_tokens = 0;                    // of the prompt, as NewSequence has it
  int32_t priority = 0;                              // policy "priority": lower goes first
  int32_t tenant = 0;                                // whose share of the tokens this uses
  double weight = 1.0;                               // > 0: the tenant's share against others'
  int64_t host_work = 0;                             // engine::RequestCost::step_work of one of its answers
  OutputKind output_kind = OutputKind::kToken;       // of the others max_tokens is 0
  int32_t second_text = -1;                          // as NewSequence has it
  int32_t pooled_from = 0;                           // the same
  bool wants_every_row = false;  // the hidden states of all of its prompt, which the cache does not have
  kv::CacheContext context;
  bool takes_drafts = true;                                // false: no speculation, whatever the engine does
  std::shared_ptr<const std::vector<TokenId>> prediction;  // what its client expects; nullptr: it does not say
  // One of several samples of a prompt: it shares the blocks of this sequence, added just before with the same prompt.
  std::optional<SequenceId> fork_of;
};

// kForking -> kWaiting (the sequence to fork from has computed the prompt, or is gone);
// kWaiting <-> kFetching (its beginning is read from disk);
// kBeamUnborn -> kRunning (the beam search has branched);
// kWaiting <-> kRunning (admission, preemption); all -> kEnded (finished, failed or cancelled), from where a sequence
// is dropped as soon as no step in flight uses its blocks.
enum class SequenceState { kForking, kBeamUnborn, kWaiting, kFetching, kRunning, kEnded };

struct BeamGroup;

// Speculation of one sequence.
struct SequenceDrafts {
  bool allowed = false;
  std::shared_ptr<const std::vector<TokenId>> prediction;
  DraftRates rates;
  DraftProposal proposal;     // for the next tokens, computed or only watched
  bool waits = false;         // is not planned ahead of its result: then it can draft
  int32_t pause = 8;          // steps between tries of a model's guesses that do not pay
  int32_t paused = 0;         // since the last
  int32_t num_in_flight = 0;  // draft tokens of a plan that is not committed
  // Of the last computed tokens those that were draft tokens and held, where states of recurrent layers lie behind
  // those before them: told to the runner with the next run.
  int32_t num_held = 0;
};

struct Sequence {
  SequenceId id = 0;
  // The order in which sequences are served: by `tag`, then by arrival. It never changes, so no two can take from each
  // other in turn.
  double tag = 0;
  uint64_t arrival = 0;
  SequenceState state = SequenceState::kWaiting;
  std::shared_ptr<const SamplingParams> params;
  uint64_t seed = 0;
  std::vector<TokenId> eos_ids;
  std::shared_ptr<const HeldConstraint> constraint;
  std::shared_ptr<const void> adapter;
  int32_t num_virtual_tokens = 0;
  OutputKind output_kind = OutputKind::kToken;
  int32_t second_text = -1;
  int32_t pooled_from = 0;
  bool wants_every_row = false;
  kv::CacheContext context;
  BeamGroup* beams = nullptr;  // the group it belongs to; null: none
  int32_t beam = 0;            // which of the group's members
  // Of a beam, whose `tokens` are completed only when somebody wants to see them: how many the answer has, and what of
  // it is in `tokens` (BeamSearch::write_tokens()).
  int32_t num_beam_tokens = 0;
  int32_t beam_node = -1;
  std::optional<SequenceId> fork_of;
  std::vector<SequenceId> forks;  // sequences in kForking that wait for this one

  std::vector<TokenId> tokens;  // prompt and committed output; of a beam see above
  bool known_to_runner = false;
  int32_t num_prompt_tokens = 0;
  bool waits_for_tokens = false;      // is not planned ahead of its result
  int32_t num_tokens_in_flight = 0;   // sampled by plans not yet committed: known to the runner, not to us
  int32_t num_computed_tokens = 0;    // scheduled runs included, committed or not
  int32_t num_computed_before = 0;    // without the run planned last
  std::optional<uint64_t> last_step;  // the step of that run
  uint64_t told_version = 0;          // of `blocks`, when plans told of them last
  int32_t max_total_tokens = 0;       // prompt and answer end here
  // Found in the cache when it was first admitted; told with the first event.
  std::optional<int32_t> num_cached_tokens;
  std::optional<uint64_t> admitted_step;  // the last in which it came to run
  std::optional<uint64_t> shared_call;  // of schedule(), in which it came to share blocks that others may compute in it
  bool asked_disk = false;              // since it began to wait
  std::vector<StoredBlockId> fetches;   // that it waits for
  bool yields = false;                  // to be preempted when no plan uses its blocks; not scheduled until then
  int32_t passed_over = 0;              // steps in which it found no room while others may have
  int32_t overtaken = 0;                // by those whose adapters ran while its own had no place
  int32_t plans_in_flight = 0;          // plans not yet committed that use its blocks
  kv::SequenceBlocks blocks;            // covers num_computed_tokens, and drafts in flight
  BlockTables told_tables;              // what plans have told the runner of them

  // Prompt logprobs of positions 1 .. num_prompt_logprobs have arrived; those not yet handed on are
  // kept.
  int32_t num_prompt_logprobs = 0;
  std::vector<PositionLogprobs> prompt_logprobs;

  SequenceDrafts drafts;

  int64_t host_work = 0;  // of a step that chooses a token
  ShareCharge charge;     // of a beam search the first beam's is that of all

  int32_t num_committed_tokens() const {
    return beams != nullptr ? num_prompt_tokens + num_beam_tokens : static_cast<int32_t>(tokens.size());
  }
  int32_t num_known_tokens() const { return num_committed_tokens() + num_tokens_in_flight; }
  int32_t num_output_tokens() const { return num_committed_tokens() - num_prompt_tokens; }
  // In all groups of layers; shared ones count.
  int64_t held_blocks() const { return int64_t{blocks.num_blocks()} * blocks.num_groups(); }
  bool scores_only() const { return max_total_tokens == num_prompt_tokens; }
  // Positions whose keys and values are ever needed: the last token sampled is never computed.
  int32_t max_computed_tokens() const { return scores_only() ? num_prompt_tokens : max_total_tokens - 1; }
  // Known tokens not yet scheduled. With drafts in flight nobody knows how many there will be; who waits for its token
  // goes on when that is known.
  int32_t num_remaining_tokens() const {
    const bool waits = waits_for_tokens || drafts.waits;
    if (drafts.num_in_flight > 0 || (waits && num_tokens_in_flight > 0)) return 0;
    return std::min(num_known_tokens(), max_computed_tokens()) - num_computed_tokens;
  }
  bool computes_prompt() const { return num_computed_tokens < num_prompt_tokens; }
  bool goes_before(const Sequence& other) const {
    return tag < other.tag || (tag == other.tag && arrival < other.arrival);
  }
};

}  // namespace quire::sched
