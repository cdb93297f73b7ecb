// Rule 5: what each tenant may have of a step, of the blocks and of the seats.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "sched/scheduler.h"

namespace quire::sched {

// ---- the step ----

namespace {
constexpr double kFewSteps = 4;   // who wants less than these is done before who wants more
constexpr double kMostOwed = 16;  // steps that are paid back to whoever was kept waiting, at most
}  // namespace

// What each tenant has, and what this step may have of it.
void Scheduler::share_step() {
  whole_step_ = config_.max_num_batched_tokens;
  if (config_.tenant_step_seconds > 0 && costs_.seconds_per_recomputed_token > 0) {
    const double tokens = config_.tenant_step_seconds / costs_.seconds_per_recomputed_token;
    whole_step_ = std::clamp(tokens, std::min(kLeastSharedTokens, whole_step_), whole_step_);
  }
  forget_credit();
  for (auto& [number, tenant] : tenants_) {
    tenant.seats = tenant.blocks = 0;
    tenant.answered = 0;
    tenant.wants_soon = 0;
    tenant.tokens = tenant.rows = {};
    tenant.sits_out = tenant.admits_nobody = tenant.has_prompt = tenant.turned_away = false;
  }
  for (const Sequence* sequence : running_) {
    TenantLoad& tenant = tenants_.at(sequence->charge.tenant);
    tenant.blocks += sequence->held_blocks();
    tenant.seats += 1;
    const BeamGroup* group = sequence->beams;
    if (group != nullptr && group->members.front() == sequence) tenant.seats += group->num_unborn;
    const int32_t remaining = sequence->num_remaining_tokens();
    if (remaining == 0) continue;
    want(tenant, *sequence, remaining);
    if (remaining == 1) {
      ++tenant.answered;
    } else {
      tenant.has_prompt = true;
    }
  }
  // Who would have been served least with all that it wants in the next few steps, up to their worth. What is begun is
  // so done before something larger, and goes on being so while it is computed: what it had of its tokens and what it
  // wants are as much together as at its beginning. And many answers are more than a prompt that is longer than a token
  // of each: they want one in every step.
  std::vector<std::pair<double, int32_t>> order;
  for (auto& [number, tenant] : tenants_) {
    if (tenant.live == 0) continue;
    add_waiting(tenant);
    order.emplace_back(tenant.served + std::min(tenant.wants_soon, kFewSteps * whole_step_) / tenant.weight, number);
  }
  std::ranges::sort(order);
  std::vector<TenantLoad*> in_turn;
  for (const auto& [after, number] : order) in_turn.push_back(&tenants_.at(number));

  step_used_ = 0;
  step_most_ = whole_step_;
  if (step_most_ < config_.max_num_batched_tokens) shorten_step(in_turn);
  share_out(step_most_, in_turn, &TenantLoad::tokens);
  share_out(config_.max_num_seqs, in_turn, &TenantLoad::rows);
}

void Scheduler::want(TenantLoad& tenant, const Sequence& sequence, int32_t num_tokens) const {
  const double host = host_tokens(sequence);
  const double now = cost_of(sequence, num_tokens) + host;
  tenant.tokens.wanted += now;
  tenant.rows.wanted += 1;
  tenant.wants_soon += now + (kFewSteps - 1) * (cost_of(sequence, 1) + host);  // its answer goes on
}

// Where prompts that are done in a few steps have come of late another may come at any time: it is not to wait long for
// a step that others fill. As long as those prompts and whoever has its turn before them want.
void Scheduler::shorten_step(std::span<TenantLoad* const> in_turn) {
  constexpr uint64_t kLately = 1000;
  const double few_rows = std::max(config_.max_num_seqs / 8, 1);
  double before = running_.empty() ? 0 : cost_of(*running_.front(), 1) + host_tokens(*running_.front());
  double wanted = 0;
  for (const TenantLoad* tenant : in_turn) {
    before += tenant->tokens.wanted;
    const bool has_much = tenant->tokens.wanted >= kFewSteps * whole_step_ || tenant->rows.wanted > few_rows;
    if (!tenant->has_prompt || has_much) continue;
    wanted = before;
    last_short_prompt_ = num_calls_;
  }
  if (last_short_prompt_ == 0 || num_calls_ - last_short_prompt_ > kLately) return;
  step_most_ = std::clamp(wanted, std::max(whole_step_ / 2, std::min(kLeastSharedTokens, whole_step_)), whole_step_);
}

// What a tenant does not want it does not save up: who had all it wanted of the last step begins where one stands that
// has had an equal share of each step since, and not before everybody who is kept waiting. So debts are paid back to
// whoever was kept waiting, to nobody else, and of a long wait a second's worth or so: others would wait all that time.
// And those that come one after the other do not go before one that waits for ever, though each wants less.
void Scheduler::forget_credit() {
  const auto was_kept_waiting = [](const TenantLoad& tenant) {
    return tenant.finds_no_room || tenant.turned_away || tenant.tokens.wanted > tenant.tokens.most ||
           tenant.rows.wanted > tenant.rows.most;
  };
  double least_waiting = std::numeric_limits<double>::infinity();
  double most = 0;
  double weights = 0;  // of those that had work in the last step
  for (const auto& [number, tenant] : tenants_) {
    if (tenant.live == 0) continue;
    most = std::max(most, tenant.served);
    if (was_kept_waiting(tenant)) least_waiting = std::min(least_waiting, tenant.served);
    if (was_kept_waiting(tenant) || tenant.tokens.wanted > 0) weights += tenant.weight;
  }
  if (weights > 0) equal_share_ += step_used_ / weights;
  equal_share_ = std::min(std::max(equal_share_, least_waiting), most);
  for (auto& [number, tenant] : tenants_) {
    if (tenant.live == 0) continue;
    const double owed = was_kept_waiting(tenant) ? kMostOwed * whole_step_ / tenant.weight : 0;
    tenant.served = std::max(tenant.served, equal_share_ - owed);
  }
}

// The first has all it wants, then the next.
void Scheduler::share_out(double rest, std::span<TenantLoad* const> tenants, StepShare TenantLoad::*of) {
  for (TenantLoad* tenant : tenants) {
    StepShare& share = tenant->*of;
    share.most = std::min(share.wanted, rest);
    rest -= share.most;
  }
}

// What those want that may come in with this step; enough of them to know its turn.
void Scheduler::add_waiting(TenantLoad& tenant) const {
  if (tenant.finds_no_room) return;
  for (const Sequence* sequence : tenant.waiting) {
    if (tenant.tokens.wanted >= kFewSteps * whole_step_ && tenant.rows.wanted >= config_.max_num_seqs) break;
    want(tenant, *sequence, sequence->num_known_tokens());
    tenant.has_prompt = true;
  }
}

// What choosing a token of it asks of the host, in tokens that the model computes in that time.
double Scheduler::host_tokens(const Sequence& sequence) const {
  constexpr double kHostWorkPerSecond = 5e9;  // RequestCost::step_work, about
  if (costs_.seconds_per_recomputed_token <= 0) return 0;
  return static_cast<double>(sequence.host_work) / (kHostWorkPerSecond * costs_.seconds_per_recomputed_token);
}

// Tokens that this step may compute of the sequence, as far as its tenant goes.
int32_t Scheduler::allowance(const Sequence& sequence) const {
  if (!has_tenants()) return std::numeric_limits<int32_t>::max();
  const TenantLoad& tenant = tenants_.at(sequence.charge.tenant);
  double left = tenant.tokens.most - tenant.tokens.used;
  if (sequence.state == SequenceState::kRunning) {
    if (step_used_ == 0) {  // the first in the order that has something to compute goes on in any case
      left = std::max(left, static_cast<double>(tenant.answered + 1));
    } else if (tenant.sits_out || tenant.rows.used + 1 > tenant.rows.most) {
      return 0;
    }
    // A token is kept for each of the tenant's that has just one to compute.
    if (sequence.num_remaining_tokens() > 1) left -= tenant.answered;
  } else {
    left = std::max(left, step_most_ - step_used_ - left_to_others(tenant));
  }
  const bool any = left >= 1;
  left -= host_tokens(sequence);
  // However much one asks of the host, it is not shut out.
  if (any && tenant.tokens.used == 0) left = std::max(left, 1.0);
  if (left < 1) return 0;
  // Where prompts are not cut, one is a step's or none's.
  if (config_.max_num_partial_prefills == 0 && sequence.computes_prompt()) return std::numeric_limits<int32_t>::max();
  return std::max(1, tokens_for(sequence, left));
}

// Of this step, to those that may come in yet. What those that run have left of their shares is anybody's.
double Scheduler::left_to_others(const TenantLoad& tenant) const {
  double sum = 0;
  for (const auto& [number, other] : tenants_) {
    const bool may_come = !other.waiting.empty() && !other.sits_out && !other.admits_nobody && !other.finds_no_room;
    if (&other != &tenant && may_come) sum += std::max(other.tokens.most - other.tokens.used, 0.0);
  }
  return sum;
}

// How many tokens cost so much.
int32_t Scheduler::tokens_for(const Sequence& sequence, double cost) const {
  const double half = tokens_per_position() / 2;
  const double linear = 1 + tokens_per_position() * sequence.num_computed_tokens;
  const double tokens = half > 0 ? (std::sqrt(linear * linear + 4 * half * cost) - linear) / (2 * half) : cost;
  return static_cast<int32_t>(std::min<double>(tokens + 1e-6, config_.max_num_batched_tokens));
}

// ---- blocks ----

// Who has an eighth of the blocks leaves an eighth to others. Not the first in the order: it must get to its end.
bool Scheduler::may_grow(const Sequence& sequence, int32_t end) const {
  if (!has_tenants() || has_few(tenants_.at(sequence.charge.tenant)) || is_first(sequence)) return true;
  const int64_t missing = cache_.blocks_missing(sequence.blocks, sequence.num_computed_tokens, end);
  return missing == 0 || cache_.pool().num_free() - missing >= reserve();
}

// In the order of those that run, with all beams of its search.
bool Scheduler::is_first(const Sequence& sequence) const {
  const Sequence* first = running_.front();
  return first == &sequence || (first->beams != nullptr && first->beams == sequence.beams);
}

// False: there is no victim, or a step writes to its blocks. It gets no more then, and goes when it
// has none.
bool Scheduler::preempt_for(const Sequence& sequence) {
  const int64_t own_blocks = tenants_.at(sequence.charge.tenant).blocks;
  Sequence* victim = nullptr;
  int64_t most = -1;
  for (auto place = running_.rbegin(); place != running_.rend(); ++place) {
    Sequence& other = **place;
    if (&other == &sequence || (other.beams != nullptr && other.beams == sequence.beams) || is_first(other)) continue;
    const int64_t blocks = tenants_.at(other.charge.tenant).blocks;
    const bool same = other.charge.tenant == sequence.charge.tenant;
    const bool may = same ? sequence.goes_before(other) : is_first(sequence) || blocks > own_blocks;
    if (!may || blocks <= most) continue;
    victim = &other;
    most = blocks;
  }
  return victim != nullptr && preempt_or_mark(*victim);
}

bool Scheduler::preempt_or_mark(Sequence& victim) {
  if (try_preempt(victim)) return true;
  somebody_yields_ = true;
  victim.yields = true;
  if (victim.beams == nullptr) return false;
  for (Sequence* member : victim.beams->members) member->yields = member->state == SequenceState::kRunning;
  return false;
}

void Scheduler::preempt_yielding() {
  somebody_yields_ = false;
  // One that has become the first stays.
  for (Sequence* sequence : running_) {
    if (is_first(*sequence)) sequence->yields = false;
  }
  const std::vector<Sequence*> running = running_;
  for (Sequence* sequence : running) {
    if (sequence->yields && sequence->state == SequenceState::kRunning) preempt_or_mark(*sequence);
  }
}

// ---- admission ----

// In the same order as of one tenant, but that those of a tenant which has reached its bounds are passed over.
void Scheduler::admit_by_tenant(StepPlan& plan, size_t& count) {
  without_place_ = first_without_place();
  for (auto& [number, tenant] : tenants_) tenant.spoken_for = 0;
  for (const Sequence* sequence : running_) {
    tenants_.at(sequence->charge.tenant).spoken_for += blocks_spoken_for(*sequence);
  }
  const auto goes_behind = [](const Sequence* a, const Sequence* b) { return b->goes_before(*a); };
  std::vector<Sequence*> firsts;  // a heap: each tenant's
  for (auto& [number, tenant] : tenants_) {
    if (tenant.sits_out || tenant.admits_nobody) continue;
    if (Sequence* first = first_to_ask(tenant.waiting)) {
      firsts.push_back(first);
    } else if (!tenant.waiting.empty()) {
      tenant.finds_no_room = true;  // what it wants is nothing to this step
    }
  }
  std::ranges::make_heap(firsts, goes_behind);
  while (!firsts.empty() && plan.num_tokens < config_.max_num_batched_tokens) {
    std::ranges::pop_heap(firsts, goes_behind);
    Sequence& next = *firsts.back();
    firsts.pop_back();
    TenantLoad& tenant = tenants_.at(next.charge.tenant);
    if (!may_take_place(next)) {  // another tenant has taken it in this step
      tenant.finds_no_room = true;
      continue;
    }
    if (!may_hold_more(next) || !has_seats(next)) {
      tenant.finds_no_room = true;
      continue;
    }
    const int64_t more = blocks_of_all(next);
    const int64_t reserved = reserved_from(tenant, more);
    if (allowance(next) <= 0) {
      tenant.finds_no_room = more + reserved > cache_.pool().num_free();
      tenant.turned_away = true;
      continue;
    }
    const Admission outcome = admit(next, reserved, plan, count);
    if (outcome == Admission::kNoRow) return;
    tenant.finds_no_room = outcome != Admission::kAdmitted;
    if (outcome == Admission::kNoRoom) {
      // Only those that live on what is kept for them may overtake, and not for ever.
      if (has_few(tenant, more) || ++next.passed_over > kMostPassedOver) return;
    }
    if (outcome != Admission::kAdmitted) continue;
    note_overtaking(next);
    tenant.spoken_for += blocks_spoken_for(next);
    Sequence* following = first_to_ask(tenant.waiting);
    if (following == nullptr) {
      tenant.finds_no_room = !tenant.waiting.empty();
      continue;
    }
    firsts.push_back(following);
    std::ranges::push_heap(firsts, goes_behind);
  }
}

// Blocks that must stay free when the tenant is given so many more: what has been promised to those that run. Who has
// few does not wait for those that have many: these may not take the last eighth.
int64_t Scheduler::reserved_from(const TenantLoad& tenant, int64_t more) const {
  int64_t sum = 0;
  for (const auto& [number, other] : tenants_) {
    if (has_few(other) || !has_few(tenant, more)) sum += other.spoken_for;
  }
  return sum;
}

// Who has nothing that runs is never stopped, nor who comes back: others may wait for it.
bool Scheduler::may_hold_more(const Sequence& sequence) const {
  if (sequence.last_step || is_of_begun_search(sequence)) return true;
  const TenantLoad& tenant = tenants_.at(sequence.charge.tenant);
  const int64_t more = blocks_of_all(sequence);
  return tenant.seats == 0 || has_few(tenant, more) || cache_.pool().num_free() - more >= reserve();
}

int64_t Scheduler::blocks_of_all(const Sequence& sequence) const {
  return int64_t{kv::blocks_for_tokens(sequence.num_known_tokens(), config_.block_size)} *
         static_cast<int64_t>(config_.windows.size());
}

bool Scheduler::is_of_begun_search(const Sequence& sequence) {
  return sequence.beams != nullptr && sequence.beams->num_running > 0;
}

// Who has few seats finds some though others have taken all.
bool Scheduler::has_seats(const Sequence& sequence) const {
  const int64_t seats = config_.max_num_seqs;
  const int64_t taken = static_cast<int64_t>(running_.size()) + num_unborn_beams_ + seats_of(sequence);
  if (taken <= seats) return true;
  if (!has_tenants()) return false;
  if (is_of_begun_search(sequence)) return taken <= kMostSeats * seats;
  const int64_t own = tenants_.at(sequence.charge.tenant).seats;
  if (own + seats_of(sequence) <= std::max<int64_t>(seats / 4, 1)) return taken <= kMostSeats * seats;
  return own == 0 && taken <= (kMostSeats - 1) * seats;  // a search of many beams
}

int64_t Scheduler::seats_of(const Sequence& sequence) {
  const BeamGroup* group = sequence.beams;
  return group != nullptr && group->num_running == 0 ? 1 + group->num_unborn : 1;
}

// Prompts of one tenant that are computed in parts. Another's do not count: they would hold this one up.
int32_t Scheduler::partial_prefills(int32_t tenant) const {
  return static_cast<int32_t>(std::ranges::count_if(running_, [tenant](const Sequence* other) {
    return other->computes_prompt() && other->charge.tenant == tenant;
  }));
}

}  // namespace quire::sched
