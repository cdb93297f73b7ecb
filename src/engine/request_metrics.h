// The engine's metrics, under vLLM's names so that its dashboards work, and the life of one request that they are
// computed from. Private to engine/.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "sched/scheduler.h"
#include "types/request_timeline.h"
#include "types/step_plan.h"
#include "types/token_event.h"

namespace quire::engine {

using Clock = std::chrono::steady_clock;

// The phases of a step, each one function.
enum class Phase { kAccept, kSchedule, kPrepare, kForward, kSample, kCommit, kDeliver };
inline constexpr int kNumPhases = 7;
const char* phase_name(int phase);

// What the answers of one request have in common.
struct RequestAnswers {
  int32_t num_left;  // that have not ended
  int64_t most_tokens = 0;
};

struct RequestRecord {
  Clock::time_point arrival;
  Clock::time_point first_scheduled;
  Clock::time_point first_token;
  Clock::time_point last_token;
  int64_t num_prompt_tokens = 0;
  int64_t num_output_tokens = 0;
  std::optional<int32_t> max_tokens;
  int32_t n = 1;
  int64_t num_preemptions = 0;
  bool started = false;
  std::shared_ptr<RequestTimeline> timeline;  // told the same times; nullptr: nobody asks
  std::shared_ptr<RequestAnswers> answers;    // of the request that has several; nullptr: there is this one

  void accepted(const sched::SequenceRequest& request, std::shared_ptr<RequestTimeline> told);
  void scheduled(Clock::time_point now);
};

class EngineMetrics {
 public:
  // model_name labels every metric, and of several engines the engine's number (-1: there is one). The registry must
  // outlive this.
  EngineMetrics(Metrics& registry, const std::string& model_name, int engine = -1);
  ~EngineMetrics();  // nothing runs any more; what was counted stays

  Counter& phase(Phase phase) { return *phases_[static_cast<size_t>(phase)]; }  // seconds
  // Processor seconds of a step that constraints took.
  void constraints(double seconds) { constraint_seconds_->increment(seconds); }
  // is_first: of the answers of its request.
  void accepted(const RequestRecord& record, bool is_first);
  void stepped(const PlannedStep& plan);
  // One event of a request; updates its record.
  void delivered(RequestRecord& record, const TokenEvent& event);
  // What changed since `before`.
  void occupancy(const sched::SchedulerStats& now, const sched::SchedulerStats& before);
  void rejected(const char* reason);
  void workers_failed() { worker_failures_->increment(); }
  void workers_started_again() { worker_restarts_->increment(); }
  // Which adapters requests that run and that wait have, most_adapters of which may run at once.
  void adapters(int32_t most_adapters, const std::string& running, const std::string& waiting);

 private:
  void drafted(const sched::SchedulerStats& now, const sched::SchedulerStats& before);
  void offloaded(const sched::SchedulerStats& now, const sched::SchedulerStats& before);
  Counter& ended(FinishReason reason);
  void finished(const RequestRecord& record, FinishReason reason, Clock::time_point now);

  Metrics& registry_;
  MetricLabels labels_;
  std::optional<MetricLabels> adapter_labels_;  // of the last adapters()
  std::vector<Counter*> phases_;
  Counter* constraint_seconds_;
  Gauge* running_;
  Gauge* waiting_;
  Gauge* kv_usage_;
  Gauge* swapped_;
  Gauge* swap_usage_;
  std::array<Counter*, 6> offload_blocks_;
  Gauge* offload_usage_;
  Gauge* offload_disk_blocks_;
  Counter* preemptions_;
  Counter* drafts_;
  Counter* draft_tokens_;
  Counter* accepted_draft_tokens_;
  Counter* worker_failures_;
  Counter* worker_restarts_;
  Counter* prefix_queries_;
  Counter* prefix_hits_;
  Counter* cached_prompt_tokens_;
  Histogram* request_preemptions_;
  Histogram* request_n_;
  Counter* prompt_tokens_;
  Counter* generation_tokens_;
  Counter* pooled_texts_;
  Histogram* iteration_tokens_;
  Histogram* time_to_first_token_;
  Histogram* inter_token_latency_;
  Histogram* time_per_output_token_;
  Histogram* end_to_end_;
  Histogram* queue_time_;
  Histogram* inference_time_;
  Histogram* prefill_time_;
  Histogram* decode_time_;
  Histogram* request_prompt_tokens_;
  Histogram* request_generation_tokens_;
  Histogram* request_most_generation_tokens_;
  Histogram* request_max_tokens_;
};

}  // namespace quire::engine
