// The next step out of what runs and what waits.
#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "sched/scheduler.h"

namespace quire::sched {
bool Scheduler::schedule(StepPlan& plan) {
  if (num_plans_in_flight_ >= static_cast<uint64_t>(config_.max_plans_in_flight)) return false;
  plan.step = next_step_;
  ++num_calls_;
  plan.sampled.clear();
  plan.moves.clear();
  plan.retired.clear();
  plan.added.clear();
  plan.swap_out.clear();
  plan.swap_in.clear();
  plan.loads.clear();
  plan.copies.clear();
  plan.stores.clear();
  plan.table_changes.clear();
  plan.table_blocks.clear();
  plan.draft_tokens.clear();
  plan.draft_choices.clear();
  plan.draft_probabilities.clear();
  plan.num_tokens = 0;
  last_preempted_.clear();
  // Copies to slots that no plan has taken along yet must not meet others to the same slots.
  cache_.begin_step(next_step_, /*free_slots=*/swap_out_.empty());
  for (size_t i = fork_sources_.size(); i-- > 0;) wake_forks(*fork_sources_[i]);

  fetch_ahead();
  if (has_tenants()) share_step();
  if (config_.num_stages > 1) share_ = stage_share();
  plan.scheduled.reserve(std::min(running_.size(), static_cast<size_t>(config_.max_num_seqs)));
  size_t count = 0;
  const bool all_found_room = schedule_running(plan, count);
  if (all_found_room) admit_waiting(plan, count);
  if (count == 0 && num_plans_in_flight_ == 0) move_something(plan, count);
  plan.scheduled.resize(count);
  waits_for_disk_ = count == 0 && num_plans_in_flight_ == 0 && !fetching_.empty();
  if (count == 0) return false;
  if (proposer_ != nullptr) add_drafts(plan, count);

  cache_.tiers().add_stores(next_step_, plan.stores);
  std::swap(plan.sampled, sampled_);
  std::swap(plan.moves, moves_);
  std::swap(plan.retired, retired_);
  std::swap(plan.swap_out, swap_out_);
  scheduled_tokens_ += static_cast<uint64_t>(plan.num_tokens);
  ++next_step_;
  ++num_plans_in_flight_;
  return true;
}

// Rules 1, 4 and 5. False when blocks ran out: somebody was preempted or sits out, so nobody is to be
// admitted (of several tenants: those that are marked).
bool Scheduler::schedule_running(StepPlan& plan, size_t& count) {
  // One token is left to compute of whoever is being answered. It is kept for those behind a prompt, who are counted
  // when there is one: mostly there is none, and with 10,000 sequences each look at them all is felt.
  const auto is_answered = [](const Sequence* sequence) { return sequence->num_remaining_tokens() == 1; };
  std::optional<int32_t> answered_behind;
  if (somebody_yields_) preempt_yielding();
  for (size_t i = 0; i < running_.size(); ++i) {
    int32_t budget = config_.max_num_batched_tokens - plan.num_tokens;
    if (budget == 0 || count == static_cast<size_t>(config_.max_num_seqs)) break;
    Sequence& sequence = *running_[i];
    if (sequence.num_remaining_tokens() == 0) continue;
    const bool answered = is_answered(&sequence);
    if (has_tenants()) {
      if (answered) --tenants_.at(sequence.charge.tenant).answered;
      if (sequence.yields) continue;
      budget = std::min(budget, allowance(sequence));
    } else if (answered) {
      if (answered_behind) --*answered_behind;
    } else {
      if (!answered_behind) {
        const auto behind = running_.begin() + static_cast<int64_t>(i) + 1;
        answered_behind = static_cast<int32_t>(std::count_if(behind, running_.end(), is_answered));
      }
      budget -= *answered_behind;
    }
    budget = std::min(budget, share_.left(answered));
    if (budget <= 0) continue;
    if (sequence.computes_prompt() && may_read_cache(sequence)) {
      sequence.num_computed_tokens =
          cache_.extend_prefix(tokens_of(sequence), sequence.num_computed_tokens, sequence.blocks);
      sequence.shared_call = num_calls_;
    }
    const int32_t num_new_tokens = run_length(sequence, budget);
    const bool has_room = make_room(sequence, sequence.num_computed_tokens + num_new_tokens, plan);
    while (running_[i] != &sequence) --i;  // some of those before it may have been preempted
    if (has_room) {
      write_run(sequence, num_new_tokens, plan, count);
      share_.take(answered, num_new_tokens);
      continue;
    }
    // Those behind must not run either: they would hold on to the blocks that this one waits for.
    if (!has_tenants() || i == 0) return false;
    tenants_.at(sequence.charge.tenant).sits_out = true;
  }
  return has_tenants() || last_preempted_.empty();
}

// Rule 10.
StageShare Scheduler::stage_share() const {
  int64_t answered = 0;
  int64_t prompts = 0;
  for (const Sequence* sequence : running_) {
    const int32_t remaining = sequence->num_remaining_tokens();
    if (remaining <= 1) {
      ++answered;
    } else {
      prompts += remaining;
    }
  }
  const int64_t most = StageShare::most_parts(config_.num_stages) * config_.max_num_batched_tokens;
  for (auto place = waiting_.begin(); place != waiting_.end() && prompts < most; ++place) {
    prompts += (*place)->num_known_tokens() - (*place)->num_computed_tokens;
  }
  const bool cuts = config_.max_num_partial_prefills > 0;
  return {config_.num_stages, answered, prompts, cuts ? config_.least_stage_tokens : 0};
}

int32_t Scheduler::run_length(const Sequence& sequence, int32_t budget) const {
  int32_t length = std::min(sequence.num_remaining_tokens(), budget);
  if (config_.long_prefill_token_threshold > 0) length = std::min(length, config_.long_prefill_token_threshold);
  return length;
}

// Whoever has its prompt's log-probabilities still to come needs every row of it.
bool Scheduler::may_read_cache(const Sequence& sequence) const {
  if (sequence.wants_every_row) return false;
  return !sequence.params->prompt_logprobs || sequence.num_prompt_logprobs == sequence.num_prompt_tokens - 1;
}

// Blocks for the positions up to `end` of a running sequence, if need be those of others.
bool Scheduler::make_room(Sequence& sequence, int32_t end, StepPlan& plan) {
  const int64_t before = has_tenants() ? sequence.held_blocks() : 0;
  while (!may_grow(sequence, end) || !cache_.prepare(sequence.blocks, sequence.num_computed_tokens, end, plan.copies)) {
    const bool preempted = has_tenants() ? preempt_for(sequence) : preempt_last_for(&sequence);
    if (!preempted && !drop_last_swapped(sequence)) return false;
  }
  if (has_tenants()) tenants_.at(sequence.charge.tenant).blocks += sequence.held_blocks() - before;
  return true;
}

// ---- preemption ----

// A sequence with a step in flight is no victim: the step still writes to its blocks. Null: for one that waits.
bool Scheduler::preempt_last_for(const Sequence* sequence) {
  if (running_.empty()) return false;
  Sequence& last = *running_.back();
  if (&last == sequence) return false;
  if (sequence != nullptr && last.beams != nullptr && sequence->beams == last.beams) return false;
  return try_preempt(last);
}

// False: it is in use, or another of its search is.
bool Scheduler::try_preempt(Sequence& victim) {
  if (victim.beams == nullptr) {
    if (is_in_use(victim)) return false;
    preempt(victim);
    return true;
  }
  // Beams share their blocks: one alone would free next to nothing.
  BeamGroup& group = *victim.beams;
  if (std::ranges::any_of(group.members, [this](const Sequence* s) { return is_in_use(*s); })) return false;
  for (Sequence* member : group.members) {
    if (member->state == SequenceState::kRunning) preempt(*member);
  }
  for (std::vector<TokenLogprob>& candidates : group.candidates) candidates.clear();
  return true;
}

// A step in flight, or the one that is being planned, writes to its blocks.
bool Scheduler::is_in_use(const Sequence& sequence) const {
  return sequence.plans_in_flight > 0 || sequence.shared_call == num_calls_;
}

void Scheduler::preempt(Sequence& sequence) {
  leave_queues(sequence);
  sequence.yields = false;
  TenantLoad& tenant = tenants_.at(sequence.charge.tenant);
  tenant.admits_nobody = true;
  --tenant.seats;
  tenant.blocks -= sequence.held_blocks();
  if (swaps(sequence) && cache_.swap_out(sequence.blocks, swap_out_)) {
    ++swaps_;
    ++num_swapped_;
  } else {
    cache_.release(sequence.blocks);
    sequence.num_computed_tokens = 0;
  }
  sequence.state = SequenceState::kWaiting;
  sequence.asked_disk = false;
  wait(sequence);
  ++preemptions_;
  last_preempted_.push_back(sequence.id);
}

void Scheduler::forget_runner() {
  QUIRE_CHECK_MSG(config_.num_offload_slots == 0, "blocks beyond the pool are gone with the runner");
  num_plans_in_flight_ = 0;
  sampled_.clear();
  moves_.clear();
  retired_.clear();
  swap_out_.clear();
  std::vector<Sequence*> all;
  for (const auto& [id, sequence] : sequences_) all.push_back(sequence.get());
  for (Sequence* sequence : all) {
    sequence->plans_in_flight = 0;
    sequence->num_tokens_in_flight = 0;
    sequence->drafts.num_in_flight = 0;
    sequence->drafts.waits = false;
    sequence->drafts.proposal.clear();
    sequence->known_to_runner = false;
    sequence->told_version = 0;
    sequence->told_tables = BlockTables();
    if (sequence->state == SequenceState::kEnded) {
      drop_if_idle(*sequence);
      continue;
    }
    const bool runs = sequence->state == SequenceState::kRunning;
    if (runs) leave_queues(*sequence);
    if (sequence->blocks.swapped_out()) --num_swapped_;
    cache_.release(sequence->blocks);
    sequence->num_computed_tokens = 0;
    sequence->yields = false;
    if (!runs) continue;
    sequence->state = SequenceState::kWaiting;
    wait(*sequence);
  }
  // What beams have shown of themselves is shown again when they have been computed anew.
  for (auto& [id, group] : beam_groups_) {
    for (std::vector<TokenLogprob>& candidates : group->candidates) candidates.clear();
  }
  forget_match();
  cache_.reset_prefix_cache();
}

// Copying out and in again against computing again: docs/design.md has the arithmetic.
bool Scheduler::swaps(const Sequence& sequence) const {
  if (config_.preemption_mode == PreemptionMode::kRecompute || sequence.beams != nullptr) return false;
  if (config_.preemption_mode == PreemptionMode::kSwap) return true;
  const double recompute =
      cost_in_tokens(tokens_per_position(), 0, sequence.num_computed_tokens) * costs_.seconds_per_recomputed_token;
  const double swap =
      2.0 * sequence.blocks.num_blocks() * sequence.blocks.num_groups() * costs_.seconds_per_swapped_block;
  return swap < recompute;
}

// Blocks that a swapped sequence shares stay in the pool. When nothing else is left, the last one gives them up and
// will be computed anew.
bool Scheduler::drop_last_swapped(const Sequence& except) {
  if (num_swapped_ == 0) return false;
  for (auto place = waiting_.rbegin(); place != waiting_.rend(); ++place) {
    Sequence& sequence = **place;
    if (&sequence == &except || !sequence.blocks.swapped_out()) continue;
    cache_.release(sequence.blocks);
    sequence.num_computed_tokens = 0;
    --num_swapped_;
    return true;
  }
  return false;
}

// Rule 7. Nothing is in flight, so everybody can be moved, and the first that waits fits when it is alone.
void Scheduler::move_something(StepPlan& plan, size_t& count) {
  ++num_calls_;  // nothing is planned, so what was shared on the way here is computed already
  while (count == 0 && !waiting_.empty()) {
    Sequence& first = **waiting_.begin();
    // To preempt a beam for another of its own search would lead here again.
    const bool dropped = waits_for_its_beams(first) && drop_last_swapped(first);
    if (!dropped && !preempt_last_for(nullptr) && !drop_last_swapped(first)) {
      // Alone with the pool, it may still hold too much of it itself.
      QUIRE_CHECK_MSG(first.blocks.swapped_out(), "a sequence does not fit into an empty pool");
      cache_.release(first.blocks);
      first.num_computed_tokens = 0;
      --num_swapped_;
    }
    for (auto& [number, tenant] : tenants_) tenant.sits_out = tenant.admits_nobody = false;
    admit_waiting(plan, count);
  }
}

// ---- admission ----

// Rule 9.
void Scheduler::fetch_ahead() {
  if (!config_.offload_to_disk) return;
  std::vector<Sequence*> asked;
  int32_t seen = 0;
  for (Sequence* one : waiting_) {
    if (++seen > kFetchedAhead || fetching_.size() + asked.size() >= kFetchedAhead) break;
    const bool began_search = one->beams != nullptr && one->last_step;  // whose other beams wait for it
    const bool has_blocks = one->blocks.swapped_out() || one->fork_of.has_value() || began_search;
    if (!one->asked_disk && !has_blocks && may_read_cache(*one)) asked.push_back(one);
  }
  for (Sequence* one : asked) {
    one->asked_disk = true;
    one->fetches = cache_.fetch_prefix(one->context, tokens_of(*one));
    if (one->fetches.empty()) continue;
    leave_queues(*one);
    one->state = SequenceState::kFetching;
    fetching_.push_back(one);
  }
}

void Scheduler::report(const OffloadReports& reports) {
  kv::OffloadTiers& tiers = cache_.tiers();
  tiers.report(reports);
  waits_for_disk_ = false;
  std::erase_if(fetching_, [&](Sequence* one) {
    while (!one->fetches.empty() && !tiers.is_fetching(one->fetches.back())) one->fetches.pop_back();
    if (!one->fetches.empty()) return false;
    one->state = SequenceState::kWaiting;
    wait(*one);
    return true;
  });
}

// The forks of a source can go ahead once it has computed what they share, or will not.
void Scheduler::wake_forks(Sequence& source) {
  const bool ready = source.num_computed_tokens >= source.num_prompt_tokens - 1;
  const bool gone =
      source.state != SequenceState::kRunning && (source.last_step || source.state == SequenceState::kEnded);
  if (!ready && !gone) return;
  std::erase(fork_sources_, &source);
  for (const SequenceId id : std::exchange(source.forks, {})) {
    const auto place = sequences_.find(id);
    if (place == sequences_.end() || place->second->state != SequenceState::kForking) continue;
    place->second->state = SequenceState::kWaiting;
    wait(*place->second);
  }
}

// The blocks that a running sequence is sure to want beyond those it has: for its known tokens, and
// the one after them.
int64_t Scheduler::blocks_spoken_for(const Sequence& sequence) const {
  const int64_t after =
      (kv::blocks_for_tokens(sequence.num_known_tokens(), config_.block_size) + 1) * config_.block_size;
  const int64_t end = std::min<int64_t>(after, sequence.max_computed_tokens());
  return cache_.blocks_wanted(sequence.blocks, sequence.num_computed_tokens, static_cast<int32_t>(end),
                              config_.max_num_batched_tokens);
}

// Rules 2 and 3.
void Scheduler::admit_waiting(StepPlan& plan, size_t& count) {
  if (waiting_.empty()) return;
  if (has_tenants()) return admit_by_tenant(plan, count);
  int64_t spoken_for = 0;
  for (const Sequence* sequence : running_) spoken_for += blocks_spoken_for(*sequence);
  without_place_ = first_without_place();
  while (plan.num_tokens < config_.max_num_batched_tokens) {
    Sequence* next = first_to_ask(waiting_);
    if (next == nullptr || admit(*next, spoken_for, plan, count) != Admission::kAdmitted) return;
    note_overtaking(*next);
    spoken_for += blocks_spoken_for(*next);
  }
}

// The first that waits for the place of an adapter, while all are taken. nullptr: nobody does.
Sequence* Scheduler::first_without_place() const {
  if (config_.max_adapters == 0 || static_cast<int32_t>(running_adapters_.size()) < config_.max_adapters)
    return nullptr;
  int32_t passed = 0;
  for (Sequence* one : waiting_) {
    if (!has_adapter_place(*one)) return one;
    if (++passed == kMostPassedInAStep) break;
  }
  return nullptr;
}

// Has a place, and takes it from nobody who has been overtaken often enough: then whose adapters run wait too, until
// one of them has done.
bool Scheduler::may_take_place(const Sequence& sequence) const {
  if (!has_adapter_place(sequence)) return false;
  return sequence.context.lora_id == 0 || without_place_ == nullptr || without_place_->overtaken < kMostOvertaken ||
         !without_place_->goes_before(sequence);
}

// Of those that wait in this queue, past such as have no place. nullptr: nobody may be asked now.
Sequence* Scheduler::first_to_ask(const WaitingQueue& waiting) const {
  int32_t passed = 0;
  for (Sequence* one : waiting) {
    if (may_take_place(*one)) return one;
    if (++passed == kMostPassedInAStep) break;
  }
  return nullptr;
}

void Scheduler::note_overtaking(const Sequence& admitted) {
  if (without_place_ == nullptr || admitted.context.lora_id == 0) return;
  if (without_place_->goes_before(admitted)) ++without_place_->overtaken;
}

bool Scheduler::has_adapter_place(const Sequence& sequence) const {
  const int32_t adapter = sequence.context.lora_id;
  return adapter == 0 || config_.max_adapters == 0 || running_adapters_.contains(adapter) ||
         static_cast<int32_t>(running_adapters_.size()) < config_.max_adapters;
}

// A beam of which only others of its search run.
bool Scheduler::waits_for_its_beams(const Sequence& sequence) const {
  const BeamGroup* group = sequence.beams;
  return group != nullptr && group->num_running > 0 && running_.size() == static_cast<size_t>(group->num_running);
}

Scheduler::Admission Scheduler::admit(Sequence& sequence, int64_t reserved, StepPlan& plan, size_t& count) {
  const int32_t share = share_.left(/*answered=*/false);
  if (count == static_cast<size_t>(config_.max_num_seqs) || share == 0) return Admission::kNoRow;
  if (!has_seats(sequence)) return Admission::kOwnBound;
  const int32_t budget = std::min({config_.max_num_batched_tokens - plan.num_tokens, allowance(sequence), share});

  const bool swapped = sequence.blocks.swapped_out();
  const bool forked = !swapped && fork_blocks(sequence);
  const int32_t end = std::min(sequence.num_known_tokens(), sequence.max_computed_tokens());
  const int32_t max_run = config_.max_num_batched_tokens;
  int64_t needed = 0;
  if (swapped || forked) {
    needed = cache_.blocks_wanted(sequence.blocks, sequence.num_computed_tokens, end, max_run);
    if (swapped) needed += cache_.blocks_to_swap_in(sequence.blocks);
  } else {
    look_up_prefix(sequence);
    sequence.num_computed_tokens = match_.num_computed();
    needed = cache_.blocks_wanted(match_, end, max_run) + cache_.idle_blocks(match_) + cache_.blocks_to_load(match_);
  }
  const auto watermark =
      running_.empty() ? 0 : static_cast<int64_t>(config_.watermark * static_cast<double>(config_.num_blocks));
  // A search whose beams are alone with the pool has room for all of them, whatever they are to want next.
  if (waits_for_its_beams(sequence)) reserved = -watermark;
  const bool has_room = needed + reserved + watermark <= cache_.pool().num_free();
  const int32_t num_new_tokens = run_length(sequence, budget);
  const bool partial = num_new_tokens < sequence.num_remaining_tokens();
  if (!has_room || (partial && partial_prefills(sequence.charge.tenant) >= config_.max_num_partial_prefills)) {
    if (forked) cache_.release(sequence.blocks);
    if (!swapped) sequence.num_computed_tokens = 0;
    return has_room ? Admission::kOwnBound : Admission::kNoRoom;
  }

  if (!swapped) sequence.drafts.num_held = 0;  // what is found or computed anew are states, not drafts
  if (!swapped && !forked) cache_.adopt(std::move(match_), sequence.blocks, plan.loads);
  leave_queues(sequence);
  if (!sequence.last_step) {
    sequence.num_cached_tokens = std::min(sequence.num_computed_tokens, sequence.num_prompt_tokens);
  }
  if (swapped) QUIRE_CHECK(cache_.swap_in(sequence.blocks, plan.swap_in));
  QUIRE_CHECK(cache_.prepare(sequence.blocks, sequence.num_computed_tokens,
                             sequence.num_computed_tokens + num_new_tokens, plan.copies));
  sequence.fork_of.reset();
  sequence.admitted_step = next_step_;
  to_running(sequence);
  if (!sequence.known_to_runner) introduce(sequence, plan);
  write_run(sequence, num_new_tokens, plan, count);
  share_.take(/*answered=*/false, num_new_tokens);
  TenantLoad& tenant = tenants_.at(sequence.charge.tenant);
  ++tenant.seats;
  tenant.blocks += sequence.held_blocks();
  return Admission::kAdmitted;
}

// Shares the prompt of the sequence that this one is another sample of. False: it cannot now, or there is none.
bool Scheduler::fork_blocks(Sequence& sequence) {
  if (!sequence.fork_of || !may_read_cache(sequence)) return false;
  const auto place = sequences_.find(*sequence.fork_of);
  const int32_t shared = sequence.num_prompt_tokens - 1;
  if (place == sequences_.end() || place->second->state != SequenceState::kRunning || shared == 0) return false;
  const Sequence& source = *place->second;
  // Only what earlier steps compute can be copied by this one: not what it copies itself.
  if (source.admitted_step == next_step_ && shared % config_.block_size != 0) return false;
  const int32_t computed = source.last_step == next_step_ ? source.num_computed_before : source.num_computed_tokens;
  if (config_.keeps_states && computed != shared) return false;  // states do not go back to their last token
  if (computed < shared || !cache_.may_fork_now(source.blocks, shared)) return false;
  if (!cache_.fork(source.blocks, shared, sequence.blocks)) return false;
  sequence.num_computed_tokens = shared;
  return true;
}

// What others have computed of this sequence's tokens already becomes match_. Nothing is held before it is admitted.
void Scheduler::look_up_prefix(Sequence& sequence) {
  const std::vector<TokenId>& tokens = tokens_of(sequence);
  if (matched_ == &sequence && cache_.still_holds(match_, tokens)) return;
  forget_match();
  matched_ = &sequence;
  if (may_read_cache(sequence)) match_ = cache_.look_up(sequence.context, tokens);
}

void Scheduler::forget_match() {
  cache_.forget(match_);
  matched_ = nullptr;
}

void Scheduler::to_running(Sequence& sequence) {
  sequence.state = SequenceState::kRunning;
  sequence.yields = false;
  running_.insert(std::ranges::lower_bound(running_, &sequence, ServedBefore()), &sequence);
  if (sequence.context.lora_id != 0) ++running_adapters_[sequence.context.lora_id];
  BeamGroup* group = sequence.beams;
  if (group != nullptr && ++group->num_running == 1) num_unborn_beams_ += group->num_unborn;
  if (group == nullptr || group->members.front() == &sequence) shares_.started(sequence.charge);
}

// All that are known. A beam's are completed by what has changed since they were asked for.
const std::vector<TokenId>& Scheduler::tokens_of(Sequence& sequence) {
  if (sequence.beams != nullptr && sequence.num_beam_tokens > 0) {
    sequence.beams->search.write_tokens(sequence.beam, static_cast<size_t>(sequence.num_prompt_tokens),
                                        sequence.beam_node, sequence.tokens);
  }
  return sequence.tokens;
}

void Scheduler::introduce(Sequence& sequence, StepPlan& plan) {
  NewSequence& added = plan.added.emplace_back();
  added.id = sequence.id;
  const std::vector<TokenId>& tokens = tokens_of(sequence);
  const auto prompt_end = tokens.begin() + sequence.num_prompt_tokens;
  added.prompt.assign(tokens.begin(), prompt_end);
  added.output.assign(prompt_end, tokens.end());
  added.params = sequence.params;
  added.seed = sequence.seed;
  added.eos_ids = sequence.eos_ids;
  added.output_kind = sequence.output_kind;
  added.second_text = sequence.second_text;
  added.pooled_from = sequence.pooled_from;
  added.constraint = sequence.constraint ? sequence.constraint->id : 0;
  added.adapter = sequence.context.lora_id;
  added.num_virtual_tokens = sequence.num_virtual_tokens;
  sequence.known_to_runner = true;
}

void Scheduler::tell_tables(Sequence& sequence, StepPlan& plan) {
  const kv::SequenceBlocks& blocks = sequence.blocks;
  if (sequence.told_version == blocks.version()) return;
  sequence.told_version = blocks.version();
  for (int32_t group = 0; group < blocks.num_groups(); ++group) {
    sequence.told_tables.tell(sequence.id, group, blocks.table(group), plan.table_changes, plan.table_blocks);
  }
}

void Scheduler::write_run(Sequence& sequence, int32_t num_new_tokens, StepPlan& plan, size_t& count) {
  if (!sequence.known_to_runner) introduce(sequence, plan);  // a beam just born
  if (count == plan.scheduled.size()) plan.scheduled.emplace_back();
  ScheduledSequence& run = plan.scheduled[count++];
  run.id = sequence.id;
  run.num_computed_tokens = sequence.num_computed_tokens;
  run.num_new_tokens = num_new_tokens;
  run.num_draft_tokens = 0;
  run.num_replayed_tokens = std::exchange(sequence.drafts.num_held, 0);
  tell_tables(sequence, plan);
  const double cost = cost_of(sequence, num_new_tokens);
  sequence.num_computed_before = sequence.num_computed_tokens;
  sequence.num_computed_tokens += num_new_tokens;
  sequence.last_step = next_step_;
  run.samples = sequence.num_computed_tokens == sequence.num_known_tokens() && !sequence.scores_only();
  run.num_candidates = run.samples && sequence.beams != nullptr ? sequence.beams->search.num_candidates() : 0;
  const int32_t num_known = std::min(sequence.num_computed_tokens, sequence.num_committed_tokens());
  if (cache_.has_to_publish(num_known, sequence.blocks)) {
    cache_.publish(sequence.context, tokens_of(sequence), num_known, sequence.blocks);
  }
  if (run.samples && sequence.beams == nullptr) ++sequence.num_tokens_in_flight;
  ++sequence.plans_in_flight;
  plan.num_tokens += num_new_tokens;
  if (!has_tenants()) return;
  TenantLoad& tenant = tenants_.at(sequence.charge.tenant);
  const double with_host = cost + (run.samples ? host_tokens(sequence) : 0.0);
  tenant.tokens.used += with_host;
  tenant.rows.used += 1;
  step_used_ += with_host;
  tenant.served += with_host / tenant.weight;
}

}  // namespace quire::sched
