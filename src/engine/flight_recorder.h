// What the engine did lately: the last steps, and the lives of the last requests, for whoever looks into an incident.
// Kept in rings of fixed size; any thread may read while the engine writes.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <boost/json.hpp>

#include "engine/request_metrics.h"
#include "types/step_plan.h"
#include "types/token_event.h"

namespace quire::engine {

struct StepRecord {
  struct Run {
    SequenceId id = 0;
    int32_t num_computed_tokens = 0;
    int32_t num_new_tokens = 0;
    int32_t num_draft_tokens = 0;
  };
  uint64_t step = 0;
  double time = 0;  // seconds since the engine started, when the step was planned
  int32_t num_tokens = 0;
  int32_t running = 0, waiting = 0, swapped = 0;
  int32_t blocks_used = 0, blocks_cached = 0, blocks_total = 0;
  int32_t copies = 0, swapped_in = 0, swapped_out = 0;  // blocks
  bool replayed = false;                                // the forward pass had been recorded before (a CUDA graph)
  bool ahead = false;                                   // begun before the tokens of the step before were known
  int32_t host_rows = 0;                                // rows of logits that the host sampled from, or scored
  int64_t draw_bytes = 0;                               // that went to the device to choose the tokens there
  double collect = 0;                                   // seconds of the host's until they were on their way
  double wait = 0;                                      // seconds of `sample` until the device had the tokens
  std::vector<SequenceId> preempted;
  std::vector<Run> runs;
  std::array<double, kNumPhases> seconds{};  // by Phase; accept is that before the step
};

// One answer's life. Times in seconds since the engine started.
struct RequestLife {
  struct Event {
    double time;
    const char* what;  // "queued", "adapter_loaded", "scheduled", "preempted", "first_token", "finished"
    int64_t tokens;    // of the answer so far
  };
  SequenceId id = 0;
  std::string label;              // the request's own id, as its client knows it
  std::string adapter;            // by its name; empty: none
  uint64_t adapter_revision = 0;  // from when it was in memory
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;
  int64_t num_output_tokens = 0;
  std::string finish;  // empty: not yet
  std::vector<Event> events;
};

class FlightRecorder {
 public:
  // num_steps 0: records nothing.
  explicit FlightRecorder(int32_t num_steps) : most_steps_(static_cast<size_t>(num_steps)) {}

  bool on() const { return most_steps_ > 0; }
  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  void record(StepRecord step);
  void queued(SequenceId id, std::string_view label, int64_t num_prompt_tokens, std::string_view adapter = {});
  void adapter_loaded(SequenceId id, uint64_t revision);
  void happened(SequenceId id, const char* what);
  void delivered(SequenceId id, const TokenEvent& event);

  // {"steps": [...]}: the last `count` (all that are kept, if negative), the oldest first.
  boost::json::object steps(int64_t count) const;
  // The lives of the answers of the request of this label, or of the sequence of this number; nullopt: none is kept.
  std::optional<boost::json::object> request(std::string_view label) const;

 private:
  static constexpr size_t kMostEvents = 64;  // of one life; the first and the last are kept

  void add_event(RequestLife& life, const char* what);

  const size_t most_steps_;
  const Clock::time_point start_ = Clock::now();
  mutable std::mutex mutex_;
  std::deque<StepRecord> steps_;  // guarded by mutex_, like all below
  std::unordered_map<SequenceId, RequestLife> lives_;
  std::deque<SequenceId> finished_;  // the oldest first
};

}  // namespace quire::engine
