// Drives a Scheduler over a PagedMemory, so that every answer and every read is checked, in scenarios written by hand.
#pragma once

#include <deque>
#include <map>
#include <set>

#include "tests/sched/paged_memory.h"
#include "tests/sched/scheduler_harness.h"

namespace quire::sched::testing_support {

class PagedDriver {
 public:
  explicit PagedDriver(const SchedulerConfig& config, TokenId vocabulary = 1000)
      : scheduler(config), language_{.vocabulary = vocabulary}, memory_(config, language_) {}

  [[nodiscard]] Status add(SequenceRequest request) {
    const SequenceId last = request.id + static_cast<SequenceId>(std::max(1, request.params->num_beams()));
    for (SequenceId id = request.id; id < last; ++id) memory_.set_context(id, request.context);
    return scheduler.add(std::move(request));
  }

  // What the request is answered when nobody else is there, `count` tokens long.
  std::vector<TokenId> alone(const SequenceRequest& request, int count) const {
    uint64_t digest = Language::begin(request.context);
    for (const TokenId token : request.prompt) digest = Language::extend(digest, token);
    std::vector<TokenId> answer;
    while (static_cast<int>(answer.size()) < count) {
      answer.push_back(language_.next(digest, request.seed));
      digest = Language::extend(digest, answer.back());
    }
    return answer;
  }

  // Plans and executes a step without committing it.
  bool plan_step() {
    StepPlan next;
    if (!scheduler.schedule(next)) return false;
    scheduler.check_invariants();
    StepResult result = memory_.execute(next);
    for (SequenceResult& one : result.sequences) {
      if (failing.count(one.id) == 0) continue;
      one.tokens.clear();
      one.error = internal_error("not finite");
    }
    plan = next;
    steps_.push_back({std::move(next), std::move(result)});
    return true;
  }
  void commit_step() {
    auto [done, result] = std::move(steps_.front());
    steps_.pop_front();
    for (CommitEvent& event : scheduler.commit(done, std::move(result))) {
      Answer& answer = answers[event.id];
      ASSERT_FALSE(answer.finished()) << "told of after its end";
      answer.tokens.insert(answer.tokens.end(), event.event.tokens.begin(), event.event.tokens.end());
      for (PositionLogprobs& one : event.event.prompt_logprobs) answer.prompt_logprobs.push_back(one);
      answer.last = std::move(event.event);
    }
    scheduler.check_invariants();
  }
  bool step() {
    if (!plan_step()) return false;
    commit_step();
    return true;
  }
  size_t num_in_flight() const { return steps_.size(); }

  // As many plans ahead as the scheduler makes. False: no end after `limit` steps.
  bool run_to_end(int limit = 10000) {
    for (int i = 0; i < limit && scheduler.has_work(); ++i) {
      while (plan_step()) most_in_flight = std::max(most_in_flight, steps_.size());
      if (steps_.empty()) return false;
      commit_step();
    }
    return !scheduler.has_work();
  }

  // The run of a sequence in the plan made last; null: none.
  const ScheduledSequence* run_of(SequenceId id) const {
    const auto place = std::ranges::find(plan.scheduled, id, &ScheduledSequence::id);
    return place == plan.scheduled.end() ? nullptr : &*place;
  }

  std::span<const BlockId> table_of(SequenceId id, size_t group = 0) const { return memory_.tables(id).table(group); }

  Scheduler scheduler;
  StepPlan plan;  // the last one
  std::map<SequenceId, Answer> answers;
  std::set<SequenceId> failing;  // their next result is an error
  size_t most_in_flight = 0;

 private:
  Language language_;
  PagedMemory memory_;
  std::deque<std::pair<StepPlan, StepResult>> steps_;
};

}  // namespace quire::sched::testing_support
