// Drives a Scheduler as an engine would, with made-up tokens in place of a model.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "sched/scheduler.h"

namespace quire::sched::testing_support {

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<PositionLogprobs> prompt_logprobs;
  TokenEvent last;
  bool finished() const { return last.finish != FinishReason::kNone; }
};

inline SequenceRequest make_request(SequenceId id, int num_prompt_tokens, SamplingParams params) {
  SequenceRequest request;
  request.id = id;
  for (int i = 0; i < num_prompt_tokens; ++i) request.prompt.push_back(1000 + i);
  request.params = std::make_shared<const SamplingParams>(std::move(params));
  request.seed = id * 7;
  return request;
}

inline SequenceRequest make_request(SequenceId id, int num_prompt_tokens, int max_tokens) {
  SamplingParams params;
  params.max_tokens = max_tokens;
  return make_request(id, num_prompt_tokens, std::move(params));
}

class Driver {
 public:
  explicit Driver(const SchedulerConfig& config) : scheduler(config) {}

  // The token that a sequence samples at this index of its answer.
  std::function<TokenId(SequenceId, int index)> sample = [](SequenceId id, int index) {
    return static_cast<TokenId>(static_cast<int>(id) * 100 + index);
  };

  // What a runner would return for the plan.
  StepResult run(const StepPlan& asked) {
    StepResult result;
    result.step = asked.step;
    for (const NewSequence& added : asked.added) prompts[added.id] = added;
    for_each_table_change(asked, [this](const TableChange& change, std::span<const BlockId> blocks) {
      tables[change.id].take(change, blocks);
    });
    for (const ScheduledSequence& run : asked.scheduled) {
      SequenceResult& one = result.sequences.emplace_back();
      one.id = run.id;
      if (run.samples) {
        one.tokens.push_back(sample(run.id, static_cast<int>(answers[run.id].tokens.size())));
      }
      const NewSequence& known = prompts.at(run.id);
      if (!known.params->prompt_logprobs) continue;
      const int end = std::min(run.num_computed_tokens + run.num_new_tokens, static_cast<int>(known.prompt.size()) - 1);
      for (int row = run.num_computed_tokens; row < end; ++row) {
        PositionLogprobs logprobs;
        logprobs.chosen.id = known.prompt[static_cast<size_t>(row) + 1];
        one.prompt_logprobs.push_back(logprobs);
      }
    }
    return result;
  }

  void commit(const StepPlan& done, StepResult result) {
    for (CommitEvent& event : scheduler.commit(done, std::move(result))) {
      Answer& answer = answers[event.id];
      for (TokenId token : event.event.tokens) answer.tokens.push_back(token);
      for (PositionLogprobs& one : event.event.prompt_logprobs) {
        answer.prompt_logprobs.push_back(one);
      }
      answer.last = std::move(event.event);
    }
    scheduler.check_invariants();
  }

  // One whole step; false when there was nothing to schedule.
  bool step() {
    if (!scheduler.schedule(plan)) return false;
    scheduler.check_invariants();
    commit(plan, run(plan));
    return true;
  }

  // Steps until nothing is left; the number of steps, or -1 after `limit`.
  int run_to_end(int limit = 100000) {
    for (int steps = 0; steps < limit; ++steps) {
      if (!step()) return scheduler.has_work() ? -1 : steps;
    }
    return -1;
  }

  Scheduler scheduler;
  StepPlan plan;  // the last one
  std::map<SequenceId, Answer> answers;
  std::map<SequenceId, NewSequence> prompts;
  std::map<SequenceId, BlockTables> tables;
};

}  // namespace quire::sched::testing_support
