// Everything that the scheduler is told and what it answers, as lines of JSON: written beside a running engine, read by
// replay(), which takes a scheduler through the same life without a model and compares every plan. An incident becomes
// a file, and the file a test.
//
// Lines, each an object with one key:
//   {"config": {...}}                      the scheduler's, first
//   {"add": {...}}                         a request: tokens of the prompt and the parameters that scheduling looks at
//   {"cancel": id} {"reset": true} {"costs": [recompute, swap, attention]}
//   {"plan": {"step", "digest", ...}}      what schedule() gave
//   {"result": {"step", "sequences": ...}} what came back for it
// The prompts' tokens are in it: handle it as you would the prompts.
#pragma once

#include <cstdint>
#include <fstream>
#include <istream>
#include <memory>
#include <string>

#include <boost/json.hpp>

#include "base/status.h"
#include "sched/scheduler.h"

namespace quire::engine {

class TraceWriter {
 public:
  // Errors: invalid_argument when the file cannot be written.
  static Result<std::unique_ptr<TraceWriter>> open(const std::string& path, const sched::SchedulerConfig& config);

  void add(const sched::SequenceRequest& request);
  void cancel(SequenceId id);
  void reset_prefix_cache();
  void costs(const sched::PreemptionCosts& costs);
  void planned(const StepPlan& plan);
  void committed(const StepResult& result);

 private:
  TraceWriter() = default;
  void write(const char* key, boost::json::value value);

  std::ofstream file_;
};

struct ReplayReport {
  int64_t num_requests = 0;
  int64_t num_steps = 0;
  int64_t num_tokens = 0;  // computed
  int64_t num_sampled = 0;
  sched::SchedulerStats last;  // the scheduler's, at the end
  // The first plan that differs from the recorded one, in words; empty: none does.
  std::string difference;
};

// Errors: data_loss naming the line that is no such trace; a truncated last line is the end. Checks the scheduler's
// invariants after every step.
Result<ReplayReport> replay(std::istream& trace);

}  // namespace quire::engine
