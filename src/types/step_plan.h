// One step of the engine as plain data: what sched/ asks of runner/ (StepPlan) and what comes back
// (StepResult). Neither side sees the other; both can live in different processes. A plan owns what is in it and moves
// to whoever carries it out; of it sched/ keeps a PlannedStep.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "types/block_tables.h"
#include "types/constraint_table.h"
#include "types/draft_probability.h"
#include "types/ids.h"
#include "types/kv_offload.h"
#include "types/sampling_params.h"

namespace quire {

// What a sequence is computed for.
enum class OutputKind : uint8_t {
  kToken,        // the next one, by sampling or for a beam search
  kScore,        // the numbers of a classifying head
  kHiddenState,  // of the last layer, to be pooled
};

// Tokens [first, first + count) of a prompt are places of a picture's or a sound's: its hidden states stand there.
struct MediaSpan {
  int32_t first = 0;
  int32_t count = 0;
  uint64_t media = 0;  // which
};

// Told to the runner once, in the first plan that schedules the sequence. The runner keeps the
// tokens of a sequence (prompt and sampled) until the plan that retires it, so that later plans
// name positions only.
struct NewSequence {
  SequenceId id = 0;
  std::vector<TokenId> prompt;
  std::vector<TokenId> output;                   // what was chosen before: of a beam that begins in the middle
  std::shared_ptr<const SamplingParams> params;  // immutable, a value that several share
  uint64_t seed = 0;                             // the request's own, or one drawn by the engine
  // The model's end ids, none with ignore_eos: banned until min_tokens, as params->stop_token_ids are.
  std::vector<TokenId> eos_ids;
  ConstraintId constraint = 0;  // of params->structured_output
  int32_t adapter = 0;          // 0: the model as it is
  // So many tokens of the prompt, the first, are the adapter's own (a soft prompt): their ids count from 0 and mean
  // nothing, and their embeddings are the adapter's.
  int32_t num_virtual_tokens = 0;
  OutputKind output_kind = OutputKind::kToken;
  int32_t second_text = -1;  // where the second one of a pair begins in the prompt; below 0: there is one text
  int32_t pooled_from = 0;   // of the prompt's positions the first that is pooled: those before are computed alone
  std::vector<MediaSpan> media;
};

// A run of tokens [num_computed_tokens, num_computed_tokens + num_new_tokens) of a sequence to
// compute in this step. Prefill and decode are the same thing.
struct ScheduledSequence {
  SequenceId id = 0;
  int32_t num_computed_tokens = 0;  // keys and values already in the cache
  int32_t num_new_tokens = 0;       // >= 1
  // The run reaches the end of the known tokens: a token is sampled from its last row, or, with num_candidates > 0, the
  // most likely ones are given for the beam search to choose from.
  bool samples = false;
  int32_t num_candidates = 0;
  // Guesses of what follows the run, computed behind it: each row from the run's last on samples as long as all guesses
  // before it are what was sampled. REQUIRES, above 0: samples, num_candidates is 0, and no token of the sequence is in
  // flight.
  int32_t num_draft_tokens = 0;
  // Of the tokens before the run so many, the last, were draft tokens of the run before it, and held: the states of
  // recurrent layers lie behind those before them (ops/state_cache.h). 0 where no layer has one.
  int32_t num_replayed_tokens = 0;

  int32_t num_rows() const { return num_new_tokens + num_draft_tokens; }
};

// Within the pool, every layer of the block's group, keys and values.
struct BlockCopy {
  BlockId source = kNoBlock;
  BlockId destination = kNoBlock;
};

// Between the pool and the second one.
struct SwapCopy {
  BlockId block = kNoBlock;
  SwapSlot slot = -1;
};

// The tokens of sequence `id` become those that `source` had before this plan, and `token` follows.
struct BeamMove {
  SequenceId id = 0;
  SequenceId source = 0;
  TokenId token = kNoToken;
};

// A token that an earlier step gave.
struct SampledToken {
  SequenceId id = 0;
  TokenId token = kNoToken;
};

// Carried out in the order of the fields.
struct StepPlan {
  uint64_t step = 0;
  // Of the steps committed since the last plan, one behind the other, of answers that go on: for the stages of a
  // pipeline that did not sample them. Empty where there is one stage.
  std::vector<SampledToken> sampled;
  std::vector<BeamMove> moves;      // all at once, then
  std::vector<SequenceId> retired;  // forget these
  std::vector<NewSequence> added;   // learn these
  std::vector<SwapCopy> swap_out;   // pool to slots: blocks may be reused from here on
  std::vector<SwapCopy> swap_in;    // slots to pool
  std::vector<OffloadCopy> loads;   // of the prefix cache: host memory to pool
  std::vector<BlockCopy> copies;    // before anything is computed
  // Of the scheduled sequences: with them each group's table of it covers all tokens up to the end of its run, and its
  // draft tokens.
  std::vector<TableChange> table_changes;
  std::vector<BlockId> table_blocks;  // of one change after the other
  std::vector<ScheduledSequence> scheduled;
  std::vector<TokenId> draft_tokens;  // of one scheduled sequence after the other
  // Beside draft_tokens, as far as it goes: from how many of the probabilities each was drawn; 0, and of the rest: it
  // is certain.
  std::vector<int32_t> draft_choices;
  std::vector<DraftProbability> draft_probabilities;  // of one draft token after the other
  int32_t num_tokens = 0;                             // rows that the model computes: the sum of num_rows()
  std::vector<OffloadCopy> stores;                    // of the prefix cache: pool to host memory, when all is computed
};

// Calls take(change, its blocks) for each change.
template <typename Take>
void for_each_table_change(const StepPlan& plan, const Take& take) {
  std::span<const BlockId> left = plan.table_blocks;
  for (const TableChange& change : plan.table_changes) {
    const auto count = static_cast<size_t>(change.count);
    take(change, left.first(count));
    left = left.subspan(count);
  }
}

// For who plans by hand: all of a table, whatever was told before.
inline void tell_whole_table(StepPlan& plan, SequenceId id, int32_t group, std::span<const BlockId> table) {
  BlockTables().tell(id, group, table, plan.table_changes, plan.table_blocks);
}

// What is looked at of a plan when its result is there.
struct PlannedStep {
  struct Run {
    SequenceId id = 0;
    int32_t num_computed_tokens = 0;
    int32_t num_new_tokens = 0;
    bool samples = false;
    int32_t num_draft_tokens = 0;
  };

  PlannedStep() = default;
  PlannedStep(const StepPlan& plan) { note(plan); }  // NOLINT(google-explicit-constructor): a plan tells all of it
  // Becomes that of another plan, in the same memory.
  void note(const StepPlan& plan) {
    step = plan.step;
    num_tokens = plan.num_tokens;
    num_swapped_blocks = plan.swap_in.size() + plan.swap_out.size();
    runs.resize(plan.scheduled.size());
    for (size_t i = 0; i < runs.size(); ++i) {
      const ScheduledSequence& run = plan.scheduled[i];
      runs[i] = {run.id, run.num_computed_tokens, run.num_new_tokens, run.samples, run.num_draft_tokens};
    }
  }

  uint64_t step = 0;
  int32_t num_tokens = 0;
  size_t num_swapped_blocks = 0;  // in and out
  std::vector<Run> runs;          // in the order of StepPlan::scheduled
};

// One token with its log-probability (natural log, of the model's own distribution before
// penalties, temperature and filters, as vLLM's default "raw_logprobs") and rank (1 = most likely).
struct TokenLogprob {
  TokenId id = kNoToken;
  float logprob = 0.0f;
  int32_t rank = 0;
};

// The chosen (or given) token first, then the most likely ones in falling order.
struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
};

struct SequenceResult {
  SequenceId id = 0;
  // Sampled in this step; empty while the prompt is being computed. Of a run with draft tokens one more than were
  // accepted: all but the last are the first of them.
  std::vector<TokenId> tokens;
  std::vector<TokenLogprob> candidates;           // of a beam: num_candidates of them, the most likely first
  std::vector<PositionLogprobs> logprobs;         // beside tokens, if asked for
  std::vector<PositionLogprobs> prompt_logprobs;  // of the prompt tokens that this step's rows predict, if asked for
  // Of another kind than kToken, with the run that ends its prompt: the pooled hidden state, [hidden_size], or the
  // head's numbers, [num_labels], both as they are.
  std::vector<float> pooled;
  Status error;  // a fault of this sequence alone (not finite logits, ...)
};

struct StepResult {
  uint64_t step = 0;
  std::vector<SequenceResult> sequences;  // one per ScheduledSequence, in the plan's order
};

}  // namespace quire
