// The scheduler: which tokens of which sequences the next step computes, and what the step's result
// means for them. Plain data goes out (StepPlan) and comes back (StepResult); block ids come from
// kv/; the engine thread alone calls it.
//
// A sequence has known tokens (prompt and sampled) and num_computed_tokens whose keys and values
// are in the cache. It is given more of the known ones until none is left; the run that reaches
// their end samples the next. There is no prefill and no decode mode.
//
// Sequences are served in one order that never changes: by tag (sched/fair_share.h: shares of tenants, priorities with
// ageing), then by arrival. With one tenant and no priorities that is first come, first served.
//
// Rules of schedule():
//  1. One budget of tokens a step (max_num_batched_tokens) is handed out in that order; a token of it is kept for every
//     running sequence that has just one to compute, so that no prompt holds up answers. A sequence with more to
//     compute than the budget leaves, or than long_prefill_token_threshold, gets that much (chunked prefill) and the
//     rest in later steps.
//  2. The running come first, then the waiting are admitted from the front (nobody overtakes) while budget, seats
//     (max_num_seqs), partial prefills (max_num_partial_prefills) and blocks last.
//  3. A waiting sequence is admitted when all of its known tokens find room beside those that the running ones
//     still have to compute, the next block of every running one that may yet need it, and the watermark: an admission
//     that the very next step would undo is no gain.
//  4. When a running sequence finds no block, the last in the order is preempted: its blocks are freed (recompute) or
//     copied to the second pool (swap), and it waits with all its tokens. If it is itself the last, it sits out and
//     keeps what it has until a sequence before it wants its blocks or frees its own. In such a step nobody is
//     admitted.
//  5. Once there have been several tenants (shared_step.cpp):
//     - a step has at most tenant_step_seconds' worth of tokens and of the host's work, so that nobody waits long for
//       the one under way; where short prompts come, as much as those and whoever has its turn before them want, at
//       least half of it. Who would have been served least (for its weight; little is saved up) with what it wants in
//       the next few steps, up to their worth, has as much of this one as it wants, then the next;
//     - one that has an eighth of the blocks is admitted and grows only where an eighth stays free. Who finds no block
//       takes those of the last sequence of the tenant that has most, never of one that has less than its own, and
//       from its own only of later ones; the first in the order is nobody's victim and may take from all. Only tenants
//       that were short of blocks admit nobody in such a step;
//     - one that has less than a quarter of the seats finds more though others have taken all, up to three times
//       max_num_seqs, and then not all that run have a row in each step (a search's beams, who take their seats
//       together, may do so too).
//     Who is stopped by a bound of its tenant's is overtaken by other tenants, by nobody else; who finds no room, by
//     those that have less than an eighth of the blocks, and in so many steps only (kMostPassedOver).
//  6. Sequences of at most max_adapters different adapters run at once. Whose adapter finds no place is overtaken by
//     those that need none, and by those whose adapters run, but these only so often (kMostOvertaken).
//  7. If all that makes nothing move, the last is preempted for the first that waits.
//  8. Draft tokens come last (drafts.cpp): what is left of the step and of free blocks, to sequences that sample in it
//     and of which no token is in flight, as many as sched/draft_gain.h says. They preempt nobody; the blocks of those
//     that are not accepted are given back with the result. Where plans are made ahead of results, who would gain
//     by drafting is not planned until its result is there.
//  9. Of the first few that wait, those whose beginning lies on disk alone are put aside until it is in host memory
//     (once a wait); meanwhile others are admitted before them.
// 10. A pipeline's stages are at work on a step each, so a sequence goes on when its token has come through all of
//     them. A step has its part of those that are being answered, so that each stage has one, and prompts are cut so
//     that a stage has begun the next part before another is done with the last (stage_share.h).
//
// Why this ends: the first in the order is never preempted by rules 4 and 5 and not overtaken for ever; add() has
// refused what would not fit into the whole pool; so it runs to its end, then the next is first. With one tenant no two
// can preempt each other in turn: only an earlier one ever takes from a later.
//
// num_computed_tokens moves on when a run is scheduled, not when it is committed, so plans may follow each other before
// their results are known (max_plans_in_flight): a token still to come is a placeholder that the runner knows; if the
// answer turns out to have ended, what was planned beyond is dropped.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "kv/cache_manager.h"
#include "sched/beam_search.h"
#include "sched/draft_gain.h"
#include "sched/fair_share.h"
#include "sched/sequence.h"
#include "sched/stage_share.h"
#include "types/draft_proposer.h"
#include "types/engine_choices.h"
#include "types/ids.h"
#include "types/step_plan.h"
#include "types/token_event.h"

namespace quire::sched {

using quire::PreemptionMode;

struct SchedulerConfig {
  int32_t max_num_seqs = 128;             // sequences running at once
  int32_t max_num_batched_tokens = 2048;  // tokens computed in one step
  int32_t max_model_len = 0;              // prompt and answer of one sequence
  int32_t num_blocks = 0;                 // of the KV pool
  int32_t block_size = 16;                // tokens a block
  std::vector<int32_t> windows = {0};     // a group of layers each; see kv::CacheConfig
  bool keeps_states = false;              // the same
  bool prefix_caching = true;
  int32_t num_swap_blocks = 0;                                  // of the second pool
  int32_t num_offload_slots = 0;                                // of the prefix cache in host memory
  bool offload_to_disk = false;                                 // and on disk
  bool offload_writes = false;                                  // which is written to, not only read
  PreemptionMode preemption_mode = PreemptionMode::kRecompute;  // kSwap: while slots last
  bool tells_kv_events = false;
  int32_t long_prefill_token_threshold = 0;  // most prompt tokens of one sequence a step; 0: the budget
  int32_t max_num_partial_prefills = 1;      // prompts under way in several steps at once; 0: each runs whole in one
  double watermark = 0.01;                   // share of the pool that admission leaves free
  double tokens_per_priority_level = 0;      // policy "priority": ageing, see fair_share.h; 0: "fcfs"
  double tenant_step_seconds = 0.05;         // rule 5; 0: no bound
  double tokens_per_position = 0;            // what it costs a token to attend to one, in tokens that attend to none
  int32_t max_adapters = 0;                  // different ones in a step, rule 6; 0: no bound
  int32_t max_plans_in_flight = 1;           // planned and not yet committed
  int32_t num_stages = 1;                    // of a pipeline, rule 10
  int32_t least_stage_tokens = 64;           // of a prompt, where it is cut for the stages
  int32_t max_draft_tokens = 0;              // of a sequence in a step, rule 8; 0: none
  int32_t max_drafting_sequences = 0;        // where more sample in a step, no drafts; 0: no bound
  bool drafts_by_gain = true;                // false: as many as there are, whatever they cost
  uint64_t hash_seed = 0;
};

// Errors: invalid_argument when a field is out of range.
Status validate(const SchedulerConfig& config);

// What computing tokens costs, in tokens that attend to nothing.
inline double cost_in_tokens(double tokens_per_position, int32_t num_computed, int32_t num_new) {
  return num_new * (1 + tokens_per_position * (num_computed + 0.5 * num_new));
}

// What kAuto and rule 5 weigh; measured by whoever runs the steps. 0: unknown.
struct PreemptionCosts {
  double seconds_per_recomputed_token = 0;  // of cost_in_tokens()
  double seconds_per_swapped_block = 0;     // one way
  double attention_factor = 1;              // by which tokens_per_position was wrong
};

// Of a step that rule 5 bounds: the weights are read however few there are.
constexpr double kLeastSharedTokens = 8;

// Of a sequence in a step.
constexpr int32_t kMostDraftTokens = 64;

struct SchedulerStats {
  int32_t running = 0;
  int32_t waiting = 0;  // preempted and forking ones included
  int32_t swapped = 0;  // of the waiting
  int32_t blocks_total = 0;
  int32_t blocks_used = 0;
  int32_t blocks_cached = 0;  // free, with contents worth finding
  int32_t swap_slots_used = 0;
  int32_t swap_slots_total = 0;
  int32_t adapters_running = 0;  // different ones
  int32_t fetching = 0;          // of the waiting: until their beginnings are read from disk
  int32_t offload_slots_total = 0;
  kv::OffloadStatistics offload;
  uint64_t preemptions = 0;       // since the start
  uint64_t swaps = 0;             // of those, by swapping
  uint64_t scheduled_tokens = 0;  // since the start; recomputed ones count again
  int64_t prefix_query_tokens = 0;
  int64_t prefix_hit_tokens = 0;
  int64_t prefix_walked_blocks = 0;  // compared in looking for them
  // Speculation, since the start: runs with draft tokens, those tokens, and those accepted, by their place in the run.
  int64_t drafts = 0;
  int64_t draft_tokens = 0;
  int64_t accepted_draft_tokens = 0;
  std::array<int64_t, kMostDraftTokens> accepted_at{};
};

// What a committed step means for one sequence. At most one a sequence and step; none when nothing
// is to tell (a chunk that is not the last of the prompt). The event with a finish reason is the
// last of its sequence. Of a beam search there are only last events, for the first params.n of its ids, the best answer
// first.
struct CommitEvent {
  SequenceId id = 0;
  TokenEvent event;
};

class Scheduler {
 public:
  // REQUIRES: validate(config).ok().
  explicit Scheduler(const SchedulerConfig& config);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Checks what add() checks. Const and of constant state alone: other threads may ask, so that a request fails before
  // it is queued. Errors: invalid_argument: the prompt is empty; it leaves no token of the context to the
  // answer; prompt and max_tokens (at most max_model_len together) do not fit into the whole KV
  // pool, each beam with its own; more beams than max_num_seqs. Without max_tokens the answer may grow as far as
  // context and pool reach.
  Status check_fits(int64_t num_prompt_tokens, const SamplingParams& params) const;

  // Puts a sequence (or a beam search) into the waiting queue. Errors: check_fits(). REQUIRES: params set; ids
  // never used before. max_tokens 0 computes the prompt (for its logprobs), samples nothing and
  // finishes with kLength.
  Status add(SequenceRequest request);

  // Ends a sequence, or the beam search that it belongs to; commit() will not mention it again. Its blocks are freed at
  // once, or, if a step in flight uses them, when the last such step is committed. The next plan retires it if the
  // runner knows it. False: unknown or finished already.
  bool cancel(SequenceId id);

  // Sequences that are neither finished nor cancelled, or plans not yet committed.
  bool has_work() const { return num_live_ > 0 || num_plans_in_flight_ > 0; }

  // Writes the next step into `plan`, overwriting whatever is in it but reusing its memory, if it has some. False when
  // nothing can be scheduled now: there is no work, all of it waits for steps in flight, or max_plans_in_flight are. A
  // plan always schedules at least one token; retirements wait for one that does. With no plan in flight and sequences
  // left it is false only while all of them wait for the disk: waits_for_disk().
  bool schedule(StepPlan& plan);
  // The last schedule() had nothing to do before something is reported or added.
  bool waits_for_disk() const { return waits_for_disk_; }

  // Blocks of the prefix cache beyond the pool (types/kv_offload.h): what lay on disk before, told before the first
  // step; what is to be done, to be asked for after each schedule(), commit() and reset_prefix_cache(); what came of
  // it.
  void add_stored(std::span<const StoredBlock> blocks) { cache_.tiers().add_stored(blocks); }
  // Blocks to and from other instances: CacheManager has the two. The orders are to be asked for at once.
  std::vector<uint64_t> send_prefix(const kv::CacheContext& context, std::span<const TokenId> tokens,
                                    KvPrefix& prefix) {
    return cache_.send_prefix(context, tokens, prefix);
  }
  std::vector<uint64_t> receive_prefix(const kv::CacheContext& context, KvPrefix prefix) {
    return cache_.receive_prefix(context, std::move(prefix));
  }
  OffloadOrders take_orders() { return cache_.tiers().take_orders(); }
  bool has_orders() const { return cache_.tiers().has_orders(); }
  void report(const OffloadReports& reports);

  // Applies the result of the oldest plan not yet committed.
  // REQUIRES: one result a scheduled sequence, in the plan's order; where `samples`, at least one
  // token (of a beam: candidates) or an error.
  //  - an error ends its sequence (or beam search) alone (kError);
  //  - a token is appended; it ends the sequence with kStop if it is one of the end ids or of
  //    stop_token_ids and the answer has min_tokens with it, otherwise with kRepetition if the request looks for that
  //    and finds it, otherwise with kLength at max_tokens or max_model_len;
  //  - prompt logprobs are gathered over chunks and handed on with the first token (or the end),
  //    each position once.
  std::vector<CommitEvent> commit(const PlannedStep& plan, StepResult&& result);

  // Of the prefix cache, where config.tells_kv_events.
  std::vector<KvCacheEvent> take_kv_events() { return cache_.take_events(); }
  bool has_kv_events() const { return cache_.has_events(); }

  void set_preemption_costs(const PreemptionCosts& costs) { costs_ = costs; }
  // Who guesses, from now on; nullptr: nobody, which is how it begins. Must outlive the scheduler.
  void set_draft_proposer(DraftProposer* proposer) { proposer_ = proposer; }
  // What a step took, told before it is committed; for rule 8.
  void step_took(const PlannedStep& plan, double seconds);
  void reset_prefix_cache() { cache_.reset_prefix_cache(); }

  // Whoever carried out the plans is gone, and another comes that knows nothing: no sequence, no block's contents, none
  // of the plans in flight, which will not be committed. All that ran waits, and is computed from its tokens.
  // REQUIRES: there are no blocks beyond the pool.
  void forget_runner();

  SchedulerStats stats() const;
  // Tokens whose keys and values running sequences hold; shared ones count for each holder. O(running).
  int64_t held_tokens() const;
  // Preempted by the last schedule().
  const std::vector<SequenceId>& last_preempted() const { return last_preempted_; }

  // Of a sequence that the last plan schedules, the tables that it told of. nullptr: unknown.
  const kv::SequenceBlocks* blocks_of(SequenceId id) const;

  // The invariants of the design page, checked over all sequences and blocks; ends the process if
  // one is broken. O(blocks + tokens / block_size): for tests and debug builds.
  void check_invariants() const;

 private:
  struct ServedBefore {
    bool operator()(const Sequence* a, const Sequence* b) const { return a->goes_before(*b); }
  };
  using WaitingQueue = std::set<Sequence*, ServedBefore>;
  static constexpr int64_t kMostSeats = 3;           // times max_num_seqs, where several tenants have work
  static constexpr int32_t kMostPassedOver = 4'000;  // steps
  static constexpr int32_t kMostOvertaken = 64;
  static constexpr int32_t kMostPassedInAStep = 1'000;
  static constexpr int32_t kFetchedAhead = 8;  // of those that wait
  // What a tenant may have of a step.
  struct StepShare {
    double wanted = 0;
    double most = 0;
    double used = 0;
  };
  // Of a tenant that has had a request. Costs are in tokens: what the host does for one is counted as so many more.
  struct TenantLoad {
    int32_t live = 0;  // sequences that have not ended
    double weight = 1.0;
    double served = 0;           // tokens computed / weight, since all began; see forget_credit()
    int64_t seats = 0;           // of those that run, at the beginning of the step, and of those admitted since
    int64_t blocks = 0;          // the same; shared ones count for each
    int64_t spoken_for = 0;      // blocks that those are sure to want (where somebody waits)
    bool has_prompt = false;     // that is not computed yet
    int32_t answered = 0;        // running ones that have one token to compute and have not had their turn in this step
    StepShare tokens;            // what the step costs
    double wants_soon = 0;       // tokens in this step and the next few, were it to have all of them
    StepShare rows;              // sequences: there may be more than have a row in a step
    bool sits_out = false;       // one of it found no block in this step: none behind that runs
    bool admits_nobody = false;  // in this step: one of it was preempted
    bool finds_no_room = false;  // the first that waits, when it was last asked
    bool turned_away = false;    // the first that waits, in this step: others had their turn before it
    WaitingQueue waiting;
  };
  enum class Admission { kAdmitted, kNoRow, kNoRoom, kOwnBound };

  // scheduler.cpp: accept
  int64_t max_total_tokens(int64_t num_prompt_tokens, const SamplingParams& params) const;
  Sequence& create(const SequenceRequest& request, SequenceId id, const ShareCharge& charge);
  void add_beams(const SequenceRequest& request);
  void leave_queues(Sequence& sequence);
  void end(Sequence& sequence);
  void end_beams(BeamGroup& group);
  void drop_if_idle(Sequence& sequence);
  // shared_step.cpp: rule 5
  bool has_tenants() const { return tenants_.size() > 1; }
  double tokens_per_position() const { return config_.tokens_per_position * costs_.attention_factor; }
  void share_step();
  void shorten_step(std::span<TenantLoad* const> in_turn);
  void forget_credit();
  void add_waiting(TenantLoad& tenant) const;
  void want(TenantLoad& tenant, const Sequence& sequence, int32_t num_tokens) const;
  static void share_out(double rest, std::span<TenantLoad* const> tenants, StepShare TenantLoad::*of);
  double cost_of(const Sequence& sequence, int32_t num_tokens) const {
    return cost_in_tokens(tokens_per_position(), sequence.num_computed_tokens, num_tokens);
  }
  double host_tokens(const Sequence& sequence) const;
  int32_t allowance(const Sequence& sequence) const;
  double left_to_others(const TenantLoad& tenant) const;
  int32_t tokens_for(const Sequence& sequence, double cost) const;
  int64_t reserve() const { return config_.num_blocks / 8; }
  bool has_few(const TenantLoad& tenant, int64_t more = 0) const { return tenant.blocks + more <= reserve(); }
  bool may_grow(const Sequence& sequence, int32_t end) const;
  bool is_first(const Sequence& sequence) const;
  bool preempt_for(const Sequence& sequence);
  bool preempt_or_mark(Sequence& victim);
  void preempt_yielding();
  void admit_by_tenant(StepPlan& plan, size_t& count);
  int64_t reserved_from(const TenantLoad& tenant, int64_t more) const;
  bool may_hold_more(const Sequence& sequence) const;
  bool has_seats(const Sequence& sequence) const;
  static bool is_of_begun_search(const Sequence& sequence);
  static int64_t seats_of(const Sequence& sequence);
  int64_t blocks_of_all(const Sequence& sequence) const;
  int32_t partial_prefills(int32_t tenant) const;
  // schedule.cpp
  bool schedule_running(StepPlan& plan, size_t& count);
  bool make_room(Sequence& sequence, int32_t end, StepPlan& plan);
  void move_something(StepPlan& plan, size_t& count);
  StageShare stage_share() const;
  bool preempt_last_for(const Sequence* sequence);
  bool try_preempt(Sequence& victim);
  bool is_in_use(const Sequence& sequence) const;
  void preempt(Sequence& sequence);
  bool swaps(const Sequence& sequence) const;
  bool drop_last_swapped(const Sequence& except);
  void wake_forks(Sequence& source);
  void fetch_ahead();
  void admit_waiting(StepPlan& plan, size_t& count);
  bool waits_for_its_beams(const Sequence& sequence) const;
  bool has_adapter_place(const Sequence& sequence) const;
  Sequence* first_to_ask(const WaitingQueue& waiting) const;
  Sequence* first_without_place() const;
  bool may_take_place(const Sequence& sequence) const;
  void note_overtaking(const Sequence& admitted);
  // reserved: blocks that must stay free for others.
  Admission admit(Sequence& sequence, int64_t reserved, StepPlan& plan, size_t& count);
  void wait(Sequence& sequence);
  bool fork_blocks(Sequence& sequence);
  void look_up_prefix(Sequence& sequence);
  void forget_match();
  int32_t run_length(const Sequence& sequence, int32_t budget) const;
  int64_t blocks_spoken_for(const Sequence& sequence) const;
  bool may_read_cache(const Sequence& sequence) const;
  void to_waiting(Sequence& sequence);
  void to_running(Sequence& sequence);
  static const std::vector<TokenId>& tokens_of(Sequence& sequence);
  static void introduce(Sequence& sequence, StepPlan& plan);
  static void tell_tables(Sequence& sequence, StepPlan& plan);
  void write_run(Sequence& sequence, int32_t num_new_tokens, StepPlan& plan, size_t& count);
  // drafts.cpp: rule 8
  void add_drafts(StepPlan& plan, size_t count);
  bool takes_drafts(const Sequence& sequence, const ScheduledSequence& run) const;
  void ask_proposer(Sequence& sequence, int32_t most, int32_t most_computed);
  int32_t most_computed(Sequence& sequence, double cost, int32_t num_sampling, int32_t num_drafting) const;
  void write_drafts(Sequence& sequence, ScheduledSequence& run, int32_t granted, StepPlan& plan);
  void settle_drafts(Sequence& sequence, const PlannedStep::Run& run, std::span<const TokenId> sampled,
                     TokenEvent& event);
  void watch_in_flight(Sequence& sequence);
  int32_t room_for_drafts(const Sequence& sequence) const;
  DraftText draft_text(const Sequence& sequence) const;
  // commit.cpp
  void apply(Sequence& sequence, const PlannedStep::Run& run, SequenceResult&& result,
             std::vector<CommitEvent>& events);
  bool apply_tokens(Sequence& sequence, const PlannedStep::Run& run, SequenceResult&& result, TokenEvent& event);
  void gather_prompt_logprobs(Sequence& sequence, const PlannedStep::Run& run,
                              std::vector<PositionLogprobs>&& logprobs) const;
  void append_tokens(Sequence& sequence, SequenceResult&& result, TokenEvent& event) const;
  void advance_beams(BeamGroup& group, std::vector<CommitEvent>& events);
  void move_beams(BeamGroup& group, const std::vector<BeamMoveChoice>& moves);
  void finish_beams(BeamGroup& group, std::vector<CommitEvent>& events);

  SchedulerConfig config_;
  kv::CacheManager cache_;
  FairShare shares_;
  PreemptionCosts costs_;
  DraftProposer* proposer_ = nullptr;
  StepCost step_cost_;
  DraftRates draft_rates_;  // of all sequences
  double last_cost_ = 1;    // of the last step without its drafts, in tokens
  int32_t last_sampling_ = 1;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::unordered_map<SequenceId, std::unique_ptr<BeamGroup>> beam_groups_;  // by their first id
  std::vector<Sequence*> running_;                                          // in the order of service
  WaitingQueue waiting_;
  Sequence* without_place_ = nullptr;                      // first_without_place(), while some are admitted
  std::unordered_map<int32_t, int32_t> running_adapters_;  // sequences that run, by their adapter
  std::unordered_map<int32_t, TenantLoad> tenants_;        // as many as there are keys
  uint64_t last_short_prompt_ = 0;                         // num_calls_ then: shorten_step(); 0: there was none
  double equal_share_ = 0;                                 // see forget_credit()
  double whole_step_ = 0;                                  // rule 5: tokens of a step that is not shortened
  double step_most_ = 0;                                   // tokens of this step
  double step_used_ = 0;
  bool somebody_yields_ = false;
  bool waits_for_disk_ = false;
  uint64_t num_calls_ = 0;               // of schedule() and move_something()
  std::vector<Sequence*> fork_sources_;  // with forks that wait for them
  std::vector<Sequence*> fetching_;      // put aside, rule 9
  int64_t num_live_ = 0;
  int32_t num_unborn_beams_ = 0;  // seats kept for them
  int32_t num_swapped_ = 0;
  // What the first that waits shares, so that to ask it again costs a walk only when something has changed for it.
  const Sequence* matched_ = nullptr;
  kv::PrefixMatch match_;

  StageShare share_;  // rule 10: what this step may have still

  // For the next plan.
  std::vector<SampledToken> sampled_;
  std::vector<BeamMove> moves_;
  std::vector<SequenceId> retired_;
  std::vector<SwapCopy> swap_out_;
  std::vector<DraftBid> bids_;      // scratch
  std::vector<Sequence*> bidders_;  // beside them

  std::vector<SequenceId> last_preempted_;
  uint64_t next_arrival_ = 0;
  uint64_t next_step_ = 0;
  uint64_t num_plans_in_flight_ = 0;
  uint64_t preemptions_ = 0;
  uint64_t swaps_ = 0;
  uint64_t scheduled_tokens_ = 0;
  int64_t num_drafts_ = 0;  // SchedulerStats has the same
  int64_t num_draft_tokens_ = 0;
  int64_t num_accepted_ = 0;
  std::array<int64_t, kMostDraftTokens> accepted_at_{};
};

// A beam search under way. Private to sched/.
struct BeamGroup {
  explicit BeamGroup(BeamSearch::Config config) : search(std::move(config)) {}
  BeamSearch search;
  std::vector<Sequence*> members;                     // [num_beams]; the first `search.num_open()` are open
  std::vector<std::vector<TokenLogprob>> candidates;  // [num_beams]; empty: not known yet
  int32_t num_unborn = 0;
  int32_t num_running = 0;
  int64_t num_output_tokens = 0;  // chosen so far, of all beams
};

}  // namespace quire::sched
