// What a step's result means for its sequences.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "sched/scheduler.h"
#include "types/repetition.h"

namespace quire::sched {

std::vector<CommitEvent> Scheduler::commit(const PlannedStep& plan, StepResult&& result) {
  QUIRE_CHECK(num_plans_in_flight_ > 0);
  QUIRE_CHECK_MSG(plan.step == next_step_ - num_plans_in_flight_,
                  fmt::format("step {} is committed out of order", plan.step));
  QUIRE_CHECK(result.step == plan.step);
  QUIRE_CHECK(result.sequences.size() == plan.runs.size());
  --num_plans_in_flight_;
  cache_.tiers().committed(plan.step);

  std::vector<CommitEvent> events;
  events.reserve(plan.runs.size());
  for (size_t i = 0; i < plan.runs.size(); ++i) {
    const PlannedStep::Run& run = plan.runs[i];
    QUIRE_CHECK(result.sequences[i].id == run.id);
    const auto place = sequences_.find(run.id);
    QUIRE_CHECK_MSG(place != sequences_.end(), fmt::format("sequence {} is unknown", run.id));
    Sequence& sequence = *place->second;
    --sequence.plans_in_flight;
    if (sequence.state == SequenceState::kEnded) {
      drop_if_idle(sequence);
    } else {
      apply(sequence, run, std::move(result.sequences[i]), events);
    }
  }
  return events;
}

void Scheduler::apply(Sequence& sequence, const PlannedStep::Run& run, SequenceResult&& result,
                      std::vector<CommitEvent>& events) {
  BeamGroup* group = sequence.beams;
  if (!result.error.ok()) {
    const SequenceId first = group != nullptr ? group->members.front()->id : sequence.id;
    const int32_t count = group != nullptr ? sequence.params->n : 1;
    for (int32_t i = 0; i < count; ++i) {
      CommitEvent& event = events.emplace_back(CommitEvent{first + static_cast<SequenceId>(i), {}});
      event.event.finish = FinishReason::kError;
      event.event.error = result.error;
    }
    if (group != nullptr) {
      end_beams(*group);
    } else {
      end(sequence);
    }
    return;
  }
  gather_prompt_logprobs(sequence, run, std::move(result.prompt_logprobs));
  if (group != nullptr) {
    if (!run.samples) return;
    const auto member = static_cast<size_t>(std::ranges::find(group->members, &sequence) - group->members.begin());
    group->candidates[member] = std::move(result.candidates);
    QUIRE_CHECK(!group->candidates[member].empty());
    const auto open = static_cast<size_t>(group->search.num_open());
    const bool all_known =
        std::all_of(group->candidates.begin(), group->candidates.begin() + static_cast<int64_t>(open),
                    [](const auto& candidates) { return !candidates.empty(); });
    if (all_known) advance_beams(*group, events);
    return;
  }
  TokenEvent event;
  if (!apply_tokens(sequence, run, std::move(result), event)) return;
  const bool ended = event.finish != FinishReason::kNone;
  if (!ended && config_.num_stages > 1) {
    for (const TokenId token : event.tokens) sampled_.push_back({sequence.id, token});
  }
  events.push_back({sequence.id, std::move(event)});
  if (ended) {
    end(sequence);
  } else {
    // A token that was a placeholder when its step was planned may complete a block.
    cache_.publish(sequence.context, sequence.tokens,
                   std::min(sequence.num_computed_tokens, sequence.num_committed_tokens()), sequence.blocks);
    if (proposer_ != nullptr && sequence.num_tokens_in_flight > 0) watch_in_flight(sequence);
  }
}

// True when there is something to tell; an event with a finish reason ends the sequence.
bool Scheduler::apply_tokens(Sequence& sequence, const PlannedStep::Run& run, SequenceResult&& result,
                             TokenEvent& event) {
  if (run.samples) {
    --sequence.num_tokens_in_flight;
    settle_drafts(sequence, run, result.tokens, event);
    append_tokens(sequence, std::move(result), event);
    event.num_predicted_tokens = std::min(event.num_predicted_tokens, static_cast<int32_t>(event.tokens.size()));
  } else if (sequence.scores_only() && run.num_computed_tokens + run.num_new_tokens == sequence.num_prompt_tokens) {
    event.finish = sequence.output_kind == OutputKind::kToken ? FinishReason::kLength : FinishReason::kStop;
    event.pooled = std::move(result.pooled);
  } else {
    return false;
  }
  event.prompt_logprobs = std::exchange(sequence.prompt_logprobs, {});
  event.num_cached_tokens = std::exchange(sequence.num_cached_tokens, std::nullopt);
  return true;
}

// The run's row at position p predicts position p + 1. After a preemption positions come again that
// have arrived before.
void Scheduler::gather_prompt_logprobs(Sequence& sequence, const PlannedStep::Run& run,
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
  QUIRE_CHECK(result.logprobs.empty() || result.logprobs.size() == result.tokens.size());
  const auto contains = [](const std::vector<TokenId>& ids, TokenId id) { return std::ranges::count(ids, id) > 0; };
  size_t taken = 0;
  while (taken < result.tokens.size() && event.finish == FinishReason::kNone) {
    const TokenId token = result.tokens[taken++];
    sequence.tokens.push_back(token);
    const bool is_eos = contains(sequence.eos_ids, token);
    // A structured output that is complete has no other tokens left.
    const bool is_whole = is_eos && params.structured_output.has_value();
    const bool may_stop = is_whole || sequence.num_output_tokens() >= params.min_tokens;
    if (may_stop && (is_eos || params.stop_token_ids.contains(token))) {
      event.finish = FinishReason::kStop;
      event.stop_token = token;
      event.stopped_by_eos = is_eos;
    } else if (may_stop && params.repetition_detection &&
               ends_in_repetition(std::span(sequence.tokens).subspan(static_cast<size_t>(sequence.num_prompt_tokens)),
                                  *params.repetition_detection)) {
      event.finish = FinishReason::kRepetition;
    } else if (sequence.num_committed_tokens() >= sequence.max_total_tokens) {
      event.finish = FinishReason::kLength;
    }
  }
  event.tokens = std::move(result.tokens);
  event.tokens.resize(taken);
  event.logprobs = std::move(result.logprobs);
  if (event.logprobs.size() > taken) event.logprobs.resize(taken);
}

// ---- beam search ----

void Scheduler::advance_beams(BeamGroup& group, std::vector<CommitEvent>& events) {
  const auto open = static_cast<size_t>(group.search.num_open());
  group.num_output_tokens += group.search.num_open();
  std::vector<BeamMoveChoice> moves;
  const bool goes_on = group.search.advance(std::span(group.candidates).first(open), moves);
  for (std::vector<TokenLogprob>& candidates : group.candidates) candidates.clear();
  if (goes_on) {
    move_beams(group, moves);
  } else {
    finish_beams(group, events);
  }
}

// Each open beam becomes a fork of the one it goes on from. Blocks are shared; whoever writes first copies.
void Scheduler::move_beams(BeamGroup& group, const std::vector<BeamMoveChoice>& moves) {
  std::vector<kv::SequenceBlocks> blocks(moves.size());
  const int32_t num_beam_tokens = group.members.front()->num_beam_tokens + 1;  // all that go on are as long
  for (size_t i = 0; i < moves.size(); ++i) {
    const Sequence& source = *group.members[static_cast<size_t>(moves[i].source)];
    QUIRE_CHECK(source.num_computed_tokens == source.num_committed_tokens());
    QUIRE_CHECK(cache_.fork(source.blocks, source.num_computed_tokens, blocks[i]));
    const Sequence& member = *group.members[i];
    if (member.known_to_runner) moves_.push_back({member.id, source.id, moves[i].token});
  }
  for (size_t i = 0; i < group.members.size(); ++i) {
    Sequence& member = *group.members[i];
    cache_.release(member.blocks);
    const bool unborn = member.state == SequenceState::kBeamUnborn;
    if (i >= moves.size()) {  // fewer ways on than beams
      member.num_computed_tokens = 0;
      if (unborn) continue;
      leave_queues(member);
      member.state = SequenceState::kBeamUnborn;
      ++group.num_unborn;
      ++num_unborn_beams_;
      continue;
    }
    member.blocks = std::move(blocks[i]);
    member.num_beam_tokens = num_beam_tokens;
    member.num_computed_tokens = member.num_committed_tokens() - 1;
    if (!unborn) continue;
    --group.num_unborn;
    --num_unborn_beams_;
    to_running(member);
  }
}

void Scheduler::finish_beams(BeamGroup& group, std::vector<CommitEvent>& events) {
  Sequence& first = *group.members.front();
  std::vector<BeamAnswer> answers = group.search.take_answers(static_cast<size_t>(first.params->n));
  answers.resize(static_cast<size_t>(first.params->n));
  for (size_t i = 0; i < answers.size(); ++i) {
    BeamAnswer& answer = answers[i];
    TokenEvent event;
    event.finish = answer.finish;
    if (answer.finish == FinishReason::kStop) {
      event.stop_token = answer.tokens.back();
      event.stopped_by_eos = std::ranges::count(first.eos_ids, answer.tokens.back()) > 0;
    }
    event.tokens = std::move(answer.tokens);
    event.logprobs = std::move(answer.logprobs);
    event.cumulative_logprob = answer.cumulative_logprob;
    event.num_cached_tokens = first.num_cached_tokens;
    if (i == 0) event.prompt_logprobs = std::exchange(first.prompt_logprobs, {});
    events.push_back({first.id + static_cast<SequenceId>(i), std::move(event)});
  }
  end_beams(group);
}

}  // namespace quire::sched
