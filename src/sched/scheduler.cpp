#include "sched/scheduler.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace quire::sched {
namespace {

Status check_positive(const char* field, int32_t value) {
  if (value >= 1) return {};
  return invalid_argument("{} must be at least 1, got {}.", field, value).with_param(field);
}

bool contains(const std::vector<TokenId>& ids, TokenId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

Status validate(const SchedulerConfig& config) {
  QUIRE_RETURN_IF_ERROR(check_positive("max_num_seqs", config.max_num_seqs));
  QUIRE_RETURN_IF_ERROR(check_positive("max_num_batched_tokens", config.max_num_batched_tokens));
  QUIRE_RETURN_IF_ERROR(check_positive("max_model_len", config.max_model_len));
  QUIRE_RETURN_IF_ERROR(check_positive("num_blocks", config.num_blocks));
  return check_positive("block_size", config.block_size);
}

Scheduler::Scheduler(const SchedulerConfig& config) : config_(config), pool_(config.num_blocks, config.block_size) {
  QUIRE_CHECK(validate(config).ok());
}

// ---- accept ----

int64_t Scheduler::max_total_tokens(int64_t num_prompt_tokens, const SamplingParams& params) const {
  if (params.max_tokens) {
    return std::min<int64_t>(num_prompt_tokens + *params.max_tokens, config_.max_model_len);
  }
  // The last token of an answer is never computed, so it needs no room in the pool.
  const int64_t pool_tokens = int64_t{config_.num_blocks} * config_.block_size;
  return std::min<int64_t>(config_.max_model_len, pool_tokens + 1);
}

Status Scheduler::check_fits(int64_t num_prompt_tokens, const SamplingParams& params) const {
  if (num_prompt_tokens < 1) {
    return invalid_argument("The prompt must contain at least one token.").with_param("prompt");
  }
  const bool samples = !params.max_tokens || *params.max_tokens > 0;
  if (num_prompt_tokens + (samples ? 1 : 0) > config_.max_model_len) {
    return invalid_argument(
               "The prompt has {} tokens, but the context of {} tokens leaves room for a prompt of "
               "at most {}. Shorten the prompt or raise the engine's max_model_len.",
               num_prompt_tokens, config_.max_model_len, config_.max_model_len - (samples ? 1 : 0))
        .with_param("prompt");
  }
  const int64_t total = max_total_tokens(num_prompt_tokens, params);
  // The last token sampled is never computed.
  const int64_t needed = kv::blocks_for_tokens(std::max(num_prompt_tokens, total - 1), config_.block_size);
  if (needed > config_.num_blocks) {
    return invalid_argument(
               "The prompt of {} tokens with up to {} more needs {} KV cache blocks of {} tokens, "
               "but the whole cache has {}. Ask for fewer tokens or give the engine a larger "
               "cache.",
               num_prompt_tokens, std::max<int64_t>(total - num_prompt_tokens, 0), needed, config_.block_size,
               config_.num_blocks)
        .with_param(params.max_tokens ? "max_tokens" : "prompt");
  }
  return {};
}

Status Scheduler::add(SequenceRequest request) {
  QUIRE_CHECK(request.params != nullptr);
  const auto num_prompt_tokens = static_cast<int64_t>(request.prompt.size());
  QUIRE_RETURN_IF_ERROR(check_fits(num_prompt_tokens, *request.params));
  auto [place, is_new] = sequences_.try_emplace(request.id);
  QUIRE_CHECK_MSG(is_new, fmt::format("sequence {} exists already", request.id));
  place->second = std::make_unique<Sequence>();
  Sequence& sequence = *place->second;
  sequence.id = request.id;
  sequence.arrival = next_arrival_++;
  sequence.params = std::move(request.params);
  sequence.seed = request.seed;
  sequence.eos_ids = std::move(request.eos_ids);
  sequence.prompt = std::move(request.prompt);
  sequence.num_prompt_tokens = static_cast<int32_t>(num_prompt_tokens);
  sequence.num_known_tokens = sequence.num_prompt_tokens;
  sequence.max_total_tokens = static_cast<int32_t>(max_total_tokens(num_prompt_tokens, *sequence.params));
  waiting_.push_back(&sequence);
  return {};
}

bool Scheduler::cancel(SequenceId id) {
  const auto place = sequences_.find(id);
  if (place == sequences_.end() || place->second->state == SequenceState::kEnded) return false;
  Sequence& sequence = *place->second;
  if (sequence.state == SequenceState::kRunning) {
    running_.erase(std::find(running_.begin(), running_.end(), &sequence));
  } else {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &sequence));
  }
  end(sequence);
  drop_if_idle(sequence);
  return true;
}

// ---- schedule ----

bool Scheduler::schedule(StepPlan& plan) {
  plan.step = next_step_;
  plan.retired.clear();
  plan.added.clear();
  plan.num_tokens = 0;

  size_t count = 0;
  const bool all_found_room = schedule_running(plan, count);
  if (all_found_room) admit_waiting(plan, count);
  plan.scheduled.resize(count);
  if (count == 0) return false;

  std::swap(plan.retired, retired_);
  scheduled_tokens_ += static_cast<uint64_t>(plan.num_tokens);
  ++next_step_;
  ++num_plans_in_flight_;
  return true;
}

// Rules 1 and 4. False when blocks ran out: somebody was preempted or sits out, so nobody is to be
// admitted.
bool Scheduler::schedule_running(StepPlan& plan, size_t& count) {
  const uint64_t preemptions_before = preemptions_;
  // running_ shrinks from behind, where the preempted are taken.
  for (size_t i = 0; i < running_.size(); ++i) {
    const int32_t budget = config_.max_num_batched_tokens - plan.num_tokens;
    if (budget == 0) break;
    Sequence& sequence = *running_[i];
    const int32_t num_new_tokens = std::min(sequence.num_known_tokens - sequence.num_computed_tokens, budget);
    if (num_new_tokens == 0) continue;
    // Those behind must not run either: they would hold on to the blocks that this one waits for.
    if (!make_room(sequence, sequence.num_computed_tokens + num_new_tokens)) return false;
    write_run(sequence, num_new_tokens, plan, count);
  }
  return preemptions_ == preemptions_before;
}

// Blocks for the first `num_tokens` tokens of a running sequence, if need be those of later ones. A
// sequence with a step in flight is no victim: the step still writes to its blocks.
bool Scheduler::make_room(Sequence& sequence, int64_t num_tokens) {
  while (!sequence.blocks.grow(pool_, num_tokens)) {
    Sequence& last = *running_.back();
    if (&last == &sequence || last.plans_in_flight > 0) return false;
    preempt_last();
  }
  return true;
}

void Scheduler::preempt_last() {
  Sequence& sequence = *running_.back();
  running_.pop_back();
  sequence.blocks.release(pool_);
  sequence.num_computed_tokens = 0;
  sequence.state = SequenceState::kWaiting;
  waiting_.push_front(&sequence);
  ++preemptions_;
}

// The blocks that a running sequence is sure to want beyond those it has: for its known tokens, and
// the one after them.
int64_t Scheduler::blocks_spoken_for(const Sequence& sequence) const {
  const int64_t known = kv::blocks_for_tokens(sequence.num_known_tokens, config_.block_size);
  const int64_t most = kv::blocks_for_tokens(sequence.max_computed_tokens(), config_.block_size);
  return std::max<int64_t>(std::min(known + 1, most) - sequence.blocks.num_blocks(), 0);
}

// Rules 2 and 3.
void Scheduler::admit_waiting(StepPlan& plan, size_t& count) {
  if (waiting_.empty()) return;
  int64_t spoken_for = 0;
  for (const Sequence* sequence : running_) spoken_for += blocks_spoken_for(*sequence);

  while (!waiting_.empty() && running_.size() < static_cast<size_t>(config_.max_num_seqs)) {
    const int32_t budget = config_.max_num_batched_tokens - plan.num_tokens;
    if (budget == 0) return;
    Sequence& sequence = *waiting_.front();
    const int64_t needed = kv::blocks_for_tokens(sequence.num_known_tokens, config_.block_size);
    if (needed + spoken_for > pool_.num_free()) return;

    const int32_t num_new_tokens = std::min(sequence.num_known_tokens, budget);
    QUIRE_CHECK(sequence.blocks.grow(pool_, num_new_tokens));
    spoken_for += blocks_spoken_for(sequence);
    waiting_.pop_front();
    running_.push_back(&sequence);
    sequence.state = SequenceState::kRunning;
    if (!sequence.known_to_runner) introduce(sequence, plan);
    write_run(sequence, num_new_tokens, plan, count);
  }
}

void Scheduler::introduce(Sequence& sequence, StepPlan& plan) {
  NewSequence& added = plan.added.emplace_back();
  added.id = sequence.id;
  added.prompt = std::move(sequence.prompt);
  added.params = sequence.params;
  added.seed = sequence.seed;
  added.stop_token_ids = sequence.params->stop_token_ids;
  for (TokenId id : sequence.eos_ids) {
    if (!contains(added.stop_token_ids, id)) added.stop_token_ids.push_back(id);
  }
  sequence.known_to_runner = true;
}

void Scheduler::write_run(Sequence& sequence, int32_t num_new_tokens, StepPlan& plan, size_t& count) {
  if (count == plan.scheduled.size()) plan.scheduled.emplace_back();
  ScheduledSequence& run = plan.scheduled[count++];
  run.id = sequence.id;
  run.num_computed_tokens = sequence.num_computed_tokens;
  run.num_new_tokens = num_new_tokens;
  const std::span<const BlockId> blocks = sequence.blocks.ids();
  run.block_table.assign(blocks.begin(), blocks.end());
  sequence.num_computed_tokens += num_new_tokens;
  run.samples = sequence.num_computed_tokens == sequence.num_known_tokens && !sequence.scores_only();
  ++sequence.plans_in_flight;
  plan.num_tokens += num_new_tokens;
}

// ---- commit ----

std::vector<CommitEvent> Scheduler::commit(const StepPlan& plan, StepResult&& result) {
  QUIRE_CHECK(num_plans_in_flight_ > 0);
  QUIRE_CHECK_MSG(plan.step == next_step_ - num_plans_in_flight_,
                  fmt::format("step {} is committed out of order", plan.step));
  QUIRE_CHECK(result.step == plan.step);
  QUIRE_CHECK(result.sequences.size() == plan.scheduled.size());
  --num_plans_in_flight_;

  std::vector<CommitEvent> events;
  events.reserve(plan.scheduled.size());
  std::vector<Sequence*> finished;
  for (size_t i = 0; i < plan.scheduled.size(); ++i) {
    const ScheduledSequence& run = plan.scheduled[i];
    QUIRE_CHECK(result.sequences[i].id == run.id);
    const auto place = sequences_.find(run.id);
    QUIRE_CHECK_MSG(place != sequences_.end(), fmt::format("sequence {} is unknown", run.id));
    Sequence& sequence = *place->second;
    --sequence.plans_in_flight;
    if (sequence.state == SequenceState::kEnded) {
      drop_if_idle(sequence);
      continue;
    }
    TokenEvent event;
    if (!apply(sequence, run, std::move(result.sequences[i]), event)) continue;
    if (event.finish != FinishReason::kNone) {
      end(sequence);
      finished.push_back(&sequence);
    }
    events.push_back({run.id, std::move(event)});
  }
  if (!finished.empty()) {
    std::erase_if(running_, [](const Sequence* s) { return s->state == SequenceState::kEnded; });
    for (Sequence* sequence : finished) drop_if_idle(*sequence);
  }
  return events;
}

// True when there is something to tell; an event with a finish reason ends the sequence.
bool Scheduler::apply(Sequence& sequence, const ScheduledSequence& run, SequenceResult&& result,
                      TokenEvent& event) const {
  if (!result.error.ok()) {
    event.finish = FinishReason::kError;
    event.error = std::move(result.error);
    return true;
  }
  gather_prompt_logprobs(sequence, run, std::move(result.prompt_logprobs));
  if (run.samples) {
    append_tokens(sequence, std::move(result), event);
  } else if (sequence.scores_only() && run.num_computed_tokens + run.num_new_tokens == sequence.num_prompt_tokens) {
    event.finish = FinishReason::kLength;
  } else {
    return false;
  }
  event.prompt_logprobs = std::exchange(sequence.prompt_logprobs, {});
  return true;
}

// The run's row at position p predicts position p + 1. After a preemption positions come again that
// have arrived before.
void Scheduler::gather_prompt_logprobs(Sequence& sequence, const ScheduledSequence& run,
                                       std::vector<PositionLogprobs>&& logprobs) const {
  const int32_t first = run.num_computed_tokens + 1;
  for (size_t i = 0; i < logprobs.size(); ++i) {
    const int32_t position = first + static_cast<int32_t>(i);
    if (position <= sequence.num_prompt_logprobs) continue;
    QUIRE_CHECK(position == sequence.num_prompt_logprobs + 1);
    QUIRE_CHECK(position < sequence.num_prompt_tokens);
    sequence.prompt_logprobs.push_back(std::move(logprobs[i]));
    sequence.num_prompt_logprobs = position;
  }
}

void Scheduler::append_tokens(Sequence& sequence, SequenceResult&& result, TokenEvent& event) const {
  const SamplingParams& params = *sequence.params;
  QUIRE_CHECK(!result.tokens.empty());
  QUIRE_CHECK(result.logprobs.empty() || result.logprobs.size() == result.tokens.size());
  size_t taken = 0;
  while (taken < result.tokens.size() && event.finish == FinishReason::kNone) {
    const TokenId token = result.tokens[taken++];
    ++sequence.num_known_tokens;
    const bool may_stop = sequence.num_output_tokens() >= params.min_tokens;
    const bool is_eos = contains(sequence.eos_ids, token);
    if (may_stop && (is_eos || contains(params.stop_token_ids, token))) {
      event.finish = FinishReason::kStop;
      event.stop_token = token;
      event.stopped_by_eos = is_eos;
    } else if (sequence.num_known_tokens >= sequence.max_total_tokens) {
      event.finish = FinishReason::kLength;
    }
  }
  event.tokens = std::move(result.tokens);
  event.tokens.resize(taken);
  event.logprobs = std::move(result.logprobs);
  if (event.logprobs.size() > taken) event.logprobs.resize(taken);
}

// The caller takes the sequence out of its queue and calls drop_if_idle().
void Scheduler::end(Sequence& sequence) {
  sequence.state = SequenceState::kEnded;
  if (sequence.known_to_runner) retired_.push_back(sequence.id);
}

void Scheduler::drop_if_idle(Sequence& sequence) {
  if (sequence.plans_in_flight > 0) return;
  sequence.blocks.release(pool_);
  sequences_.erase(sequence.id);
}

// ---- looking in ----

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats;
  stats.running = static_cast<int32_t>(running_.size());
  stats.waiting = static_cast<int32_t>(waiting_.size());
  stats.blocks_total = pool_.num_blocks();
  stats.blocks_used = pool_.num_used();
  stats.preemptions = preemptions_;
  stats.scheduled_tokens = scheduled_tokens_;
  return stats;
}

void Scheduler::check_invariants() const {
  pool_.check_invariants();

  std::vector<int32_t> holders(static_cast<size_t>(pool_.num_blocks()), 0);
  size_t num_ended = 0;
  for (const auto& [id, sequence] : sequences_) {
    QUIRE_CHECK(sequence->id == id);
    QUIRE_CHECK(sequence->num_computed_tokens <= sequence->num_known_tokens);
    QUIRE_CHECK(sequence->num_known_tokens <= sequence->max_total_tokens);
    QUIRE_CHECK(sequence->num_computed_tokens <= sequence->max_computed_tokens());
    QUIRE_CHECK_MSG(
        sequence->blocks.num_blocks() == kv::blocks_for_tokens(sequence->num_computed_tokens, config_.block_size),
        fmt::format("sequence {} has {} blocks for {} tokens", id, sequence->blocks.num_blocks(),
                    sequence->num_computed_tokens));
    for (BlockId block : sequence->blocks.ids()) ++holders[static_cast<size_t>(block)];
    if (sequence->state == SequenceState::kEnded) {
      ++num_ended;
      QUIRE_CHECK(sequence->plans_in_flight > 0);
    }
  }
  for (BlockId block = 0; block < pool_.num_blocks(); ++block) {
    QUIRE_CHECK_MSG(pool_.reference_count(block) == holders[static_cast<size_t>(block)],
                    fmt::format("block {} has {} holders, but {} are counted", block,
                                holders[static_cast<size_t>(block)], pool_.reference_count(block)));
  }

  QUIRE_CHECK(running_.size() + waiting_.size() + num_ended == sequences_.size());
  QUIRE_CHECK(running_.size() <= static_cast<size_t>(config_.max_num_seqs));
  const Sequence* before = nullptr;
  const auto check_in_queue = [&before](const Sequence* sequence, SequenceState state) {
    QUIRE_CHECK(sequence->state == state);
    QUIRE_CHECK(before == nullptr || before->arrival < sequence->arrival);
    before = sequence;
  };
  for (const Sequence* sequence : running_) check_in_queue(sequence, SequenceState::kRunning);
  for (const Sequence* sequence : waiting_) {
    check_in_queue(sequence, SequenceState::kWaiting);
    QUIRE_CHECK(sequence->blocks.num_blocks() == 0 && sequence->plans_in_flight == 0);
  }
}

}  // namespace quire::sched
