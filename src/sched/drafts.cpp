// Draft tokens of a step (rule 8) and what became of them.
#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "base/check.h"
#include "sched/scheduler.h"

namespace quire::sched {

void Scheduler::step_took(const PlannedStep& plan, double seconds) {
  double cost = 0;
  for (const PlannedStep::Run& run : plan.runs) {
    cost += cost_in_tokens(tokens_per_position(), run.num_computed_tokens, run.num_new_tokens + run.num_draft_tokens);
  }
  step_cost_.observe(cost, seconds);
}

DraftText Scheduler::draft_text(const Sequence& sequence) const {
  DraftText text;
  text.id = sequence.id;
  // Ids of a soft prompt mean nothing.
  text.tokens = std::span(sequence.tokens).subspan(static_cast<size_t>(sequence.num_virtual_tokens));
  text.num_prompt_tokens = sequence.num_prompt_tokens - sequence.num_virtual_tokens;
  if (sequence.drafts.prediction) text.prediction = *sequence.drafts.prediction;
  text.tenant = sequence.charge.tenant;
  text.salt = sequence.context.salt;
  text.adapter = sequence.context.lora_id;
  text.params = sequence.params.get();
  text.seed = sequence.seed;
  return text;
}

// All but the token that this run samples is known, and it is not the last.
bool Scheduler::takes_drafts(const Sequence& sequence, const ScheduledSequence& run) const {
  return sequence.drafts.allowed && run.samples && sequence.beams == nullptr && sequence.num_tokens_in_flight == 1 &&
         sequence.plans_in_flight == 1 && sequence.num_committed_tokens() + 1 < sequence.max_total_tokens;
}

void Scheduler::ask_proposer(Sequence& sequence, int32_t most, int32_t most_computed) {
  DraftProposal& proposal = sequence.drafts.proposal;
  proposal.clear();
  DraftText text = draft_text(sequence);
  text.most_computed = most_computed;
  proposer_->propose(text, most, proposal);
  QUIRE_CHECK(proposal.tokens.size() <= static_cast<size_t>(most));
  QUIRE_CHECK(proposal.agreement.size() == proposal.tokens.size());
  QUIRE_CHECK(proposal.num_choices.empty() || proposal.num_choices.size() == proposal.tokens.size());
}

// Guesses of a model are paid for before anybody knows what they are worth, and who makes none learns nothing: whoever
// went quiet tries one now and then, more and more seldom.
int32_t Scheduler::most_computed(Sequence& sequence, double cost, int32_t num_sampling, int32_t num_drafting) const {
  if (!proposer_->computes()) return 0;
  if (!config_.drafts_by_gain) return config_.max_draft_tokens;
  constexpr int32_t kLongestPause = 512;  // steps
  constexpr int32_t kFewSteps = 32;
  SequenceDrafts& drafts = sequence.drafts;
  if (step_cost_.seconds() == 0) return 0;
  // What the model has still to compute of the text is paid once, for as many steps as there may be: as many tokens as
  // the answer has so far, and a few where it has none.
  const int32_t left = sequence.max_total_tokens - sequence.num_committed_tokens();
  const int32_t expected =
      std::clamp(sequence.num_committed_tokens() - sequence.num_prompt_tokens, kFewSteps, std::max(left, kFewSteps));
  const double before = proposer_->seconds_before(draft_text(sequence)) / expected;
  const GuessCost guess = {.once = (before + proposer_->seconds_at_once()) / step_cost_.seconds(),
                           .each = proposer_->seconds_per_token() / step_cost_.seconds()};
  const double row_cost = cost_in_tokens(tokens_per_position(), sequence.num_computed_tokens, 1);
  const int32_t worth = worth_computing(step_cost_, cost, num_sampling, num_drafting, row_cost, guess,
                                        drafts.rates.rate_of_model(&draft_rates_), config_.max_draft_tokens);
  if (worth > 0) {
    drafts.pause = 8;
    drafts.paused = 0;
    return worth;
  }
  // Not even a sure guess would pay: nothing is to be learned.
  if (worth_computing(step_cost_, cost, num_sampling, num_drafting, row_cost, guess, 1.0, config_.max_draft_tokens) ==
      0) {
    return 0;
  }
  if (++drafts.paused < drafts.pause) return 0;
  drafts.pause = std::min(2 * drafts.pause, kLongestPause);
  drafts.paused = 0;
  return 1;
}

void Scheduler::add_drafts(StepPlan& plan, size_t count) {
  if (config_.max_draft_tokens == 0) return;
  // What a row and a token are worth is what they are in a step in which all that run decode: that a prompt makes this
  // one long makes rows no cheaper, and whoever is not answered yet soon will be.
  double cost = 0;
  int32_t num_sampling = 0;
  for (size_t i = 0; i < count; ++i) {
    const ScheduledSequence& run = plan.scheduled[i];
    if (!run.samples) continue;
    cost += cost_in_tokens(tokens_per_position(), run.num_computed_tokens + run.num_new_tokens - 1, 1);
    ++num_sampling;
  }
  if (config_.max_drafting_sequences > 0 && num_sampling > config_.max_drafting_sequences) return;
  const bool anybody = num_sampling > 0;
  const auto others = std::max(static_cast<int32_t>(running_.size()) - num_sampling, 0);
  cost += others;
  num_sampling += others;
  last_cost_ = cost;
  last_sampling_ = std::max(num_sampling, 1);
  double left = config_.max_num_batched_tokens - plan.num_tokens;
  if (has_tenants()) left = std::min(left, step_most_ - step_used_);
  if (left < 1 || !anybody) return;
  // At a full batch nothing is asked for: not even a sure guess would pay.
  if (config_.drafts_by_gain && !may_gain(step_cost_, cost, num_sampling)) return;

  bids_.clear();
  bidders_.clear();
  for (size_t i = 0; i < count; ++i) {
    const ScheduledSequence& run = plan.scheduled[i];
    bidders_.push_back(nullptr);
    if (!run.samples) continue;
    Sequence& sequence = *sequences_.at(run.id);
    if (takes_drafts(sequence, run)) bidders_.back() = &sequence;
  }
  const auto num_drafting = static_cast<int32_t>(count - static_cast<size_t>(std::ranges::count(bidders_, nullptr)));
  for (size_t i = 0; i < count; ++i) {
    if (bidders_[i] == nullptr) continue;
    const ScheduledSequence& run = plan.scheduled[i];
    Sequence& sequence = *std::exchange(bidders_[i], nullptr);
    const int32_t most = room_for_drafts(sequence);
    if (most < 1) continue;
    ask_proposer(sequence, most, most_computed(sequence, cost, num_sampling, num_drafting));
    if (sequence.drafts.proposal.tokens.empty()) continue;
    bidders_[i] = &sequence;
    bids_.push_back({.proposal = &sequence.drafts.proposal,
                     .rates = &sequence.drafts.rates,
                     .most = most,
                     .cost = cost_in_tokens(tokens_per_position(), run.num_computed_tokens + run.num_new_tokens, 1)});
  }
  if (bids_.empty()) return;
  const auto most_tokens = static_cast<int32_t>(left);
  if (config_.drafts_by_gain) {
    grant_drafts(bids_, draft_rates_, step_cost_, cost, num_sampling, most_tokens);
  } else {
    int32_t rest = most_tokens;
    for (DraftBid& bid : bids_) {
      bid.granted = std::min(static_cast<int32_t>(bid.proposal->tokens.size()), rest);
      rest -= bid.granted;
    }
  }
  size_t bid = 0;
  for (size_t i = 0; i < count; ++i) {
    if (bidders_[i] == nullptr) continue;
    const int32_t granted = bids_[bid++].granted;
    if (granted > 0) write_drafts(*bidders_[i], plan.scheduled[i], granted, plan);
  }
}

// As far as there are free blocks: drafts preempt nobody. Where plans follow each other before their results are known,
// the next block of everybody who runs stays free too.
void Scheduler::write_drafts(Sequence& sequence, ScheduledSequence& run, int32_t granted, StepPlan& plan) {
  const int32_t begin = sequence.num_computed_tokens;
  const int64_t groups = sequence.blocks.num_groups();
  const int64_t reserved =
      config_.max_plans_in_flight > 1 ? static_cast<int64_t>(running_.size()) * groups : int64_t{0};
  const auto fits = [&](int32_t drafts) {
    const int64_t missing =
        groups * (int64_t{kv::blocks_for_tokens(begin + drafts, config_.block_size)} - sequence.blocks.num_blocks());
    if (missing <= 0) return true;
    const bool leaves_others = !has_tenants() || has_few(tenants_.at(sequence.charge.tenant), missing) ||
                               cache_.pool().num_free() - missing >= reserve();
    return leaves_others && missing + reserved <= cache_.pool().num_free();
  };
  while (granted > 0 && !fits(granted)) --granted;
  if (granted == 0) return;
  const int64_t before = sequence.held_blocks();
  QUIRE_CHECK(cache_.grow(sequence.blocks, begin + granted));
  tell_tables(sequence, plan);
  const std::vector<TokenId>& tokens = sequence.drafts.proposal.tokens;
  if (const std::vector<int32_t>& choices = sequence.drafts.proposal.num_choices; !choices.empty()) {
    plan.draft_choices.resize(plan.draft_tokens.size(), 0);
    plan.draft_choices.insert(plan.draft_choices.end(), choices.begin(), choices.begin() + granted);
    const auto drawn = std::span(sequence.drafts.proposal.probabilities)
                           .first(static_cast<size_t>(std::accumulate(choices.begin(), choices.begin() + granted, 0)));
    plan.draft_probabilities.insert(plan.draft_probabilities.end(), drawn.begin(), drawn.end());
  }
  plan.draft_tokens.insert(plan.draft_tokens.end(), tokens.begin(), tokens.begin() + granted);
  plan.num_tokens += granted;
  run.num_draft_tokens = granted;
  sequence.drafts.num_in_flight = granted;
  if (!has_tenants()) return;
  TenantLoad& tenant = tenants_.at(sequence.charge.tenant);
  tenant.blocks += sequence.held_blocks() - before;
  const double cost = cost_of(sequence, granted);
  tenant.tokens.used += cost;
  step_used_ += cost;
  tenant.served += cost / tenant.weight;
}

// sampled: all that the run gave, before it is known where the answer ends.
void Scheduler::settle_drafts(Sequence& sequence, const PlannedStep::Run& run, std::span<const TokenId> sampled,
                              TokenEvent& event) {
  SequenceDrafts& drafts = sequence.drafts;
  QUIRE_CHECK(!sampled.empty());
  if (run.num_draft_tokens > 0) {
    QUIRE_CHECK(drafts.num_in_flight == run.num_draft_tokens);
    QUIRE_CHECK(sampled.size() <= static_cast<size_t>(run.num_draft_tokens) + 1);
    const auto num_accepted = static_cast<int32_t>(sampled.size()) - 1;
    drafts.num_in_flight = 0;
    sequence.num_computed_tokens += num_accepted;
    if (config_.keeps_states) drafts.num_held = num_accepted;
    cache_.cut(sequence.blocks, sequence.num_computed_tokens);
    ++num_drafts_;
    num_draft_tokens_ += run.num_draft_tokens;
    num_accepted_ += num_accepted;
    for (int32_t i = 0; i < num_accepted; ++i) ++accepted_at_[static_cast<size_t>(i)];
    if (drafts.proposal.source == DraftSource::kPrediction) {
      event.num_predicted_tokens = num_accepted;
      event.num_mispredicted_tokens = run.num_draft_tokens - num_accepted;
    }
  }
  // Guesses that were not computed are told by what came, too.
  const DraftProposal& proposal = drafts.proposal;
  for (size_t i = 0; i < std::min(sampled.size(), proposal.tokens.size()); ++i) {
    const bool right = proposal.tokens[i] == sampled[i];
    const int32_t num_matched = proposal.num_matched + static_cast<int32_t>(i);
    drafts.rates.observe(num_matched, proposal.agreement[i], proposal.source, right);
    draft_rates_.observe(num_matched, proposal.agreement[i], proposal.source, right);
    if (!right) break;
  }
  drafts.proposal.clear();
}

// Beside the token that the model gives in any case.
int32_t Scheduler::room_for_drafts(const Sequence& sequence) const {
  const int32_t most =
      std::min(config_.max_draft_tokens, sequence.max_total_tokens - sequence.num_committed_tokens() - 1);
  if (!config_.keeps_states) return most;
  // A state lies behind the last token before the drafts, their inputs beside it: in a block that is this sequence's
  // alone, as it is not full, and that stays so, as the state of a full one is of all of its tokens.
  const int32_t last = std::max(sequence.num_computed_tokens - 1, 0) % config_.block_size;
  return std::max(std::min(most, config_.block_size - 2 - last), 0);
}

// Of a sequence that has been planned on without its last tokens being known. What is guessed here is not computed, but
// tells whether to wait for the result next time, which costs it the pause between two steps.
void Scheduler::watch_in_flight(Sequence& sequence) {
  constexpr int32_t kWorthWaiting = 2;  // draft tokens
  SequenceDrafts& drafts = sequence.drafts;
  drafts.waits = false;
  const int32_t most = room_for_drafts(sequence);
  if (!drafts.allowed || most < kWorthWaiting) return;
  if (config_.max_drafting_sequences > 0 && last_sampling_ > config_.max_drafting_sequences) return;
  if (config_.drafts_by_gain && !may_gain(step_cost_, last_cost_, last_sampling_)) return;
  ask_proposer(sequence, most, 0);
  DraftBid bid = {.proposal = &drafts.proposal,
                  .rates = &drafts.rates,
                  .most = most,
                  .cost = cost_in_tokens(tokens_per_position(), sequence.num_computed_tokens, 1),
                  .granted = static_cast<int32_t>(drafts.proposal.tokens.size())};
  if (config_.drafts_by_gain)
    grant_drafts(std::span(&bid, 1), draft_rates_, step_cost_, last_cost_, last_sampling_, most);
  drafts.waits = bid.granted >= kWorthWaiting;
}

}  // namespace quire::sched
