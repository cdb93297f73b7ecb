// The scheduler: which tokens of which sequences the next step computes, and what the step's result
// means for them. Plain data goes out (StepPlan) and comes back (StepResult); block ids come from
// kv/; the engine thread alone calls it.
//
// A sequence has known tokens (prompt and sampled) and num_computed_tokens whose keys and values
// are in the cache. It is given more of the known ones until none is left; the run that reaches
// their end samples the next. There is no prefill and no decode mode.
//
// Rules of schedule():
//  1. One budget of tokens a step (max_num_batched_tokens) is handed out in the order of arrival. A sequence with
//     more to compute than the budget leaves gets what is left (chunked prefill) and the rest in later steps.
//  2. The running come first, then the waiting are admitted from the front of the queue (first come, first served,
//     nobody overtakes) while budget, seats (max_num_seqs) and blocks last.
//  3. A waiting sequence is admitted when all of its known tokens find room beside those that the running ones
//     still have to compute and the next block of every running one that may yet need it: an admission that the
//     very next step would undo is no gain.
//  4. When a running sequence finds no block, the last come is preempted: its blocks are freed, it returns to the
//     front of the waiting queue with all its tokens and will be computed anew. If it is itself the last, it sits
//     out and keeps what it has until a sequence before it wants its blocks or frees its own. In such a step nobody
//     is admitted.
//
// Why this ends: `running` followed by `waiting` is always in the order of arrival, the first of
// them is never preempted and always gets a share of the budget, and add() has refused what would
// not fit into the whole pool. So the first runs to its end, then the next is first. No two can
// preempt each other in turn: only an earlier one ever takes from a later.
//
// num_computed_tokens moves on when a run is scheduled, not when it is committed, so plans may
// follow each other before their results are known: a sequence with a token still to come has
// nothing left to compute and sits out until commit.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "kv/block_pool.h"
#include "sched/sequence.h"
#include "types/ids.h"
#include "types/step_plan.h"
#include "types/token_event.h"

namespace quire::sched {

struct SchedulerConfig {
  int32_t max_num_seqs = 128;             // sequences running at once
  int32_t max_num_batched_tokens = 2048;  // tokens computed in one step
  int32_t max_model_len = 0;              // prompt and answer of one sequence
  int32_t num_blocks = 0;                 // of the KV pool
  int32_t block_size = 16;                // tokens a block
};

// Errors: invalid_argument when a field is below 1.
Status validate(const SchedulerConfig& config);

struct SchedulerStats {
  int32_t running = 0;
  int32_t waiting = 0;  // preempted ones included
  int32_t blocks_total = 0;
  int32_t blocks_used = 0;
  uint64_t preemptions = 0;       // since the start
  uint64_t scheduled_tokens = 0;  // since the start; recomputed ones count again
};

// What a committed step means for one sequence. At most one a sequence and step; none when nothing
// is to tell (a chunk that is not the last of the prompt). The event with a finish reason is the
// last of its sequence.
struct CommitEvent {
  SequenceId id = 0;
  TokenEvent event;
};

class Scheduler {
 public:
  // REQUIRES: validate(config).ok().
  explicit Scheduler(const SchedulerConfig& config);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Checks what add() checks. Const: other threads may ask, so that a request fails before it is
  // queued. Errors: invalid_argument: the prompt is empty; it leaves no token of the context to the
  // answer; prompt and max_tokens (at most max_model_len together) do not fit into the whole KV
  // pool. Without max_tokens the answer may grow as far as context and pool reach.
  Status check_fits(int64_t num_prompt_tokens, const SamplingParams& params) const;

  // Puts a sequence at the end of the waiting queue. Errors: check_fits(). REQUIRES: params set; an
  // id never used before. max_tokens 0 computes the prompt (for its logprobs), samples nothing and
  // finishes with kLength.
  Status add(SequenceRequest request);

  // Ends a sequence; commit() will not mention it again. Its blocks are freed at once, or, if a
  // step in flight uses them, when the last such step is committed. The next plan retires it if the
  // runner knows it. False: unknown or finished already.
  bool cancel(SequenceId id);

  // Sequences that are neither finished nor cancelled, or plans not yet committed.
  bool has_work() const { return !running_.empty() || !waiting_.empty() || num_plans_in_flight_ > 0; }

  // Writes the next step into `plan`, overwriting it but reusing its memory (pass the last plan in
  // again). False when nothing can be scheduled now: there is no work, or all of it waits for steps
  // in flight. A plan always schedules at least one token; retirements wait for one that does. With
  // no plan in flight and sequences left it is never false.
  bool schedule(StepPlan& plan);

  // Applies the result of the oldest plan not yet committed.
  // REQUIRES: one result a scheduled sequence, in the plan's order; where `samples`, at least one
  // token or an error.
  //  - an error ends its sequence alone (kError);
  //  - a token is appended; it ends the sequence with kStop if it is one of the end ids or of
  //    stop_token_ids and the answer has min_tokens with it, otherwise with kLength at max_tokens
  //    or max_model_len;
  //  - prompt logprobs are gathered over chunks and handed on with the first token (or the end),
  //  each position once.
  std::vector<CommitEvent> commit(const StepPlan& plan, StepResult&& result);

  SchedulerStats stats() const;

  // The invariants of the design page, checked over all sequences and blocks; ends the process if
  // one is broken. O(blocks + tokens / block_size): for tests and debug builds.
  void check_invariants() const;

 private:
  int64_t max_total_tokens(int64_t num_prompt_tokens, const SamplingParams& params) const;
  bool schedule_running(StepPlan& plan, size_t& count);
  void admit_waiting(StepPlan& plan, size_t& count);
  bool make_room(Sequence& sequence, int64_t num_tokens);
  void preempt_last();
  int64_t blocks_spoken_for(const Sequence& sequence) const;
  static void introduce(Sequence& sequence, StepPlan& plan);
  static void write_run(Sequence& sequence, int32_t num_new_tokens, StepPlan& plan, size_t& count);
  bool apply(Sequence& sequence, const ScheduledSequence& run, SequenceResult&& result, TokenEvent& event) const;
  void gather_prompt_logprobs(Sequence& sequence, const ScheduledSequence& run,
                              std::vector<PositionLogprobs>&& logprobs) const;
  void append_tokens(Sequence& sequence, SequenceResult&& result, TokenEvent& event) const;
  void end(Sequence& sequence);
  void drop_if_idle(Sequence& sequence);

  SchedulerConfig config_;
  kv::BlockPool pool_;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::vector<Sequence*> running_;   // in order of arrival
  std::deque<Sequence*> waiting_;    // in order of arrival; all of them came after the running ones
  std::vector<SequenceId> retired_;  // known to the runner, to be named in the next plan
  uint64_t next_arrival_ = 0;
  uint64_t next_step_ = 0;
  uint64_t num_plans_in_flight_ = 0;
  uint64_t preemptions_ = 0;
  uint64_t scheduled_tokens_ = 0;
};

}  // namespace quire::sched
