#include "engine/request_metrics.h"

#include <algorithm>
#include <utility>

namespace quire::engine {
namespace {

constexpr const char* kPhaseNames[kNumPhases] = {"accept", "schedule", "prepare", "forward",
                                                 "sample", "commit",   "deliver"};

// The bounds that vLLM's dashboards expect.
const std::vector<double> kFirstTokenSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                                1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
const std::vector<double> kTokenSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
                                           0.4,   0.5,    0.75,  1,    2.5,   5,    7.5,   10,  20,   40,  80};
const std::vector<double> kRequestSeconds = {0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5, 5,    10,
                                             15,   20,   30,  40,  50,  60,  120, 240, 480, 960, 1920, 7680};
const std::vector<double> kTokenCounts = {1,   2,    5,    10,   20,    50,    100,   200,
                                          500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
const std::vector<double> kIterationTokens = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

const std::vector<double> kSmallCounts = {0, 1, 2, 3, 5, 10, 20, 50, 100};

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

const char* phase_name(int phase) {
  return kPhaseNames[phase];
}

void RequestRecord::accepted(const sched::SequenceRequest& request, std::shared_ptr<RequestTimeline> told) {
  arrival = Clock::now();
  timeline = std::move(told);
  if (timeline != nullptr) timeline->arrived(arrival);
  num_prompt_tokens = static_cast<int64_t>(request.prompt.size());
  max_tokens = request.params->max_tokens;
  n = request.params->n;
}

void RequestRecord::scheduled(Clock::time_point now) {
  started = true;
  first_scheduled = now;
  if (timeline != nullptr) timeline->scheduled(now);
}

EngineMetrics::EngineMetrics(Metrics& registry, const std::string& model_name, int engine)
    : registry_(registry), labels_({{"model_name", model_name}}) {
  if (engine >= 0) labels_.emplace_back("engine", std::to_string(engine));
  for (const char* name : kPhaseNames) {
    MetricLabels labels = labels_;
    labels.emplace_back("phase", name);
    phases_.push_back(
        &registry.counter("quire:step_phase_seconds_total", "Time spent in each phase of the engine's step.", labels));
  }
  const auto gauge = [&](const char* name, const char* help) { return &registry.gauge(name, help, labels_); };
  const auto counter = [&](const char* name, const char* help) { return &registry.counter(name, help, labels_); };
  const auto histogram = [&](const char* name, const char* help, const std::vector<double>& buckets) {
    return &registry.histogram(name, help, buckets, labels_);
  };
  constraint_seconds_ =
      counter("quire:structured_output_seconds_total", "Processor time that structured output took of steps.");
  running_ = gauge("vllm:num_requests_running", "Requests in the running batch.");
  waiting_ = gauge("vllm:num_requests_waiting", "Requests that wait to be scheduled.");
  kv_usage_ = gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks in use; 1 means all.");
  swapped_ = gauge("vllm:num_requests_swapped", "Of those that wait: preempted with their blocks in the swap space.");
  swap_usage_ = gauge("vllm:cpu_cache_usage_perc", "Share of the swap space in use; 1 means all.");
  constexpr const char* kOffload =
      "Blocks of the prefix cache copied: out (pool to host memory), in (back), write (host memory to disk), read "
      "(back); skip: not kept, for every place waited for the disk; lost: damaged or not written.";
  const char* const kinds[] = {"out", "in", "write", "read", "skip", "lost"};
  for (size_t i = 0; i < offload_blocks_.size(); ++i) {
    MetricLabels labels = labels_;
    labels.emplace_back("kind", kinds[i]);
    offload_blocks_[i] = &registry.counter("quire:kv_offload_blocks_total", kOffload, labels);
  }
  offload_usage_ = gauge("quire:kv_offload_usage_perc", "Share of the host memory for offloaded blocks in use.");
  offload_disk_blocks_ = gauge("quire:kv_offload_disk_blocks", "Blocks of the prefix cache on disk.");
  prefix_queries_ = counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.");
  prefix_hits_ = counter("vllm:prefix_cache_hits_total", "Of those, tokens found.");
  cached_prompt_tokens_ = counter("vllm:prompt_tokens_cached_total", "Prompt tokens that needed no computing.");
  request_preemptions_ =
      histogram("vllm:request_num_preemptions", "Times a request was preempted in its life.", kSmallCounts);
  request_n_ = histogram("vllm:request_params_n", "n of a request.", kSmallCounts);
  preemptions_ = counter("vllm:num_preemptions_total", "Times a running request gave its blocks to an earlier one.");
  drafts_ = counter("vllm:spec_decode_num_drafts_total", "Runs of a sequence that were computed with draft tokens.");
  draft_tokens_ = counter("vllm:spec_decode_num_draft_tokens_total", "Draft tokens computed.");
  accepted_draft_tokens_ =
      counter("vllm:spec_decode_num_accepted_tokens_total", "Of those, tokens that were the answer's.");
  worker_failures_ = counter("quire:worker_failures_total", "Times a process of the model's ended or hung.");
  worker_restarts_ = counter("quire:worker_restarts_total", "Times the model's processes were started again.");
  prompt_tokens_ = counter("vllm:prompt_tokens_total", "Prompt tokens of the requests that produced a first token.");
  generation_tokens_ = counter("vllm:generation_tokens_total", "Tokens sampled.");
  pooled_texts_ = counter("quire:pooled_texts_total", "Texts that became vectors or scores.");
  iteration_tokens_ = histogram("vllm:iteration_tokens_total", "Tokens computed in one step.", kIterationTokens);
  time_to_first_token_ =
      histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.", kFirstTokenSeconds);
  inter_token_latency_ =
      histogram("vllm:inter_token_latency_seconds", "Between two tokens of a request.", kTokenSeconds);
  time_per_output_token_ = histogram("vllm:request_time_per_output_token_seconds",
                                     "Mean time of a request's tokens after the first.", kTokenSeconds);
  end_to_end_ = histogram("vllm:e2e_request_latency_seconds", "From arrival to the last token.", kRequestSeconds);
  queue_time_ = histogram("vllm:request_queue_time_seconds", "From arrival to the first step.", kRequestSeconds);
  inference_time_ =
      histogram("vllm:request_inference_time_seconds", "From the first step to the last token.", kRequestSeconds);
  prefill_time_ =
      histogram("vllm:request_prefill_time_seconds", "From the first step to the first token.", kRequestSeconds);
  decode_time_ = histogram("vllm:request_decode_time_seconds", "From the first token to the last.", kRequestSeconds);
  request_prompt_tokens_ = histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", kTokenCounts);
  request_generation_tokens_ =
      histogram("vllm:request_generation_tokens", "Tokens sampled for a request.", kTokenCounts);
  request_most_generation_tokens_ = histogram("vllm:request_max_num_generation_tokens",
                                              "Tokens of the longest of a request's answers.", kTokenCounts);
  request_max_tokens_ = histogram("vllm:request_params_max_tokens", "max_tokens of a request.", kTokenCounts);
  // Those that a dashboard asks for are there before the first of them.
  for (const FinishReason reason : {FinishReason::kStop, FinishReason::kLength, FinishReason::kRepetition,
                                    FinishReason::kAbort, FinishReason::kError}) {
    ended(reason);
  }
}

void EngineMetrics::accepted(const RequestRecord& record, bool is_first) {
  if (record.max_tokens) request_max_tokens_->observe(*record.max_tokens);
  if (is_first) request_n_->observe(record.n);
}

void EngineMetrics::stepped(const PlannedStep& plan) {
  iteration_tokens_->observe(plan.num_tokens);
}

EngineMetrics::~EngineMetrics() {
  for (Gauge* gauge : {running_, waiting_, swapped_, kv_usage_, swap_usage_, offload_usage_, offload_disk_blocks_}) {
    gauge->set(0);
  }
}

void EngineMetrics::occupancy(const sched::SchedulerStats& now, const sched::SchedulerStats& before) {
  running_->set(now.running);
  waiting_->set(now.waiting);
  swapped_->set(now.swapped);
  kv_usage_->set(static_cast<double>(now.blocks_used) / now.blocks_total);
  swap_usage_->set(now.swap_slots_total == 0 ? 0 : static_cast<double>(now.swap_slots_used) / now.swap_slots_total);
  preemptions_->increment(static_cast<double>(now.preemptions - before.preemptions));
  prefix_queries_->increment(static_cast<double>(now.prefix_query_tokens - before.prefix_query_tokens));
  prefix_hits_->increment(static_cast<double>(now.prefix_hit_tokens - before.prefix_hit_tokens));
  if (now.drafts != before.drafts) drafted(now, before);
  if (now.offload_slots_total > 0) offloaded(now, before);
}

void EngineMetrics::drafted(const sched::SchedulerStats& now, const sched::SchedulerStats& before) {
  drafts_->increment(static_cast<double>(now.drafts - before.drafts));
  draft_tokens_->increment(static_cast<double>(now.draft_tokens - before.draft_tokens));
  accepted_draft_tokens_->increment(static_cast<double>(now.accepted_draft_tokens - before.accepted_draft_tokens));
  for (size_t i = 0; i < now.accepted_at.size(); ++i) {
    if (now.accepted_at[i] == before.accepted_at[i]) continue;
    MetricLabels labels = labels_;
    labels.emplace_back("position", std::to_string(i));
    registry_
        .counter("vllm:spec_decode_num_accepted_tokens_per_pos_total",
                 "Accepted draft tokens, by their place in the run.", labels)
        .increment(static_cast<double>(now.accepted_at[i] - before.accepted_at[i]));
  }
}

void EngineMetrics::offloaded(const sched::SchedulerStats& now, const sched::SchedulerStats& before) {
  offload_usage_->set(static_cast<double>(now.offload.slots_used) / now.offload_slots_total);
  offload_disk_blocks_->set(static_cast<double>(now.offload.on_disk));
  const auto counts = [](const kv::OffloadStatistics& of) {
    return std::array{of.stored_blocks,  of.loaded_blocks,  of.written_blocks,
                      of.fetched_blocks, of.skipped_blocks, of.failed_fetches + of.failed_writes};
  };
  const auto counted = counts(now.offload);
  const auto told = counts(before.offload);
  for (size_t i = 0; i < offload_blocks_.size(); ++i) {
    offload_blocks_[i]->increment(static_cast<double>(counted[i] - told[i]));
  }
}

void EngineMetrics::rejected(const char* reason) {
  MetricLabels labels = labels_;
  labels.emplace_back("reason", reason);
  registry_.counter("vllm:admission_rejections_total", "Requests refused before they were queued, by reason.", labels)
      .increment();
}

// As vLLM has it: what there is to know stands in the labels, the value is when. Gateways route by it.
void EngineMetrics::adapters(int32_t most_adapters, const std::string& running, const std::string& waiting) {
  MetricLabels labels = labels_;
  labels.emplace_back("max_lora", std::to_string(most_adapters));
  labels.emplace_back("running_lora_adapters", running);
  labels.emplace_back("waiting_lora_adapters", waiting);
  constexpr const char* kName = "vllm:lora_requests_info";
  if (adapter_labels_ && *adapter_labels_ != labels) registry_.remove_gauge(kName, *adapter_labels_);
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  registry_.gauge(kName, "Adapters of the requests that run and of those that wait; the value is the time.", labels)
      .set(now.count());
  adapter_labels_ = std::move(labels);
}

void EngineMetrics::delivered(RequestRecord& record, const TokenEvent& event) {
  const auto now = Clock::now();
  if (event.num_cached_tokens) cached_prompt_tokens_->increment(*event.num_cached_tokens);
  if (!event.tokens.empty()) {
    if (record.num_output_tokens == 0) {
      record.first_token = now;
      prompt_tokens_->increment(static_cast<double>(record.num_prompt_tokens));
      time_to_first_token_->observe(seconds(now - record.arrival));
      prefill_time_->observe(seconds(now - record.first_scheduled));
    } else {
      inter_token_latency_->observe(seconds(now - record.last_token));
    }
    record.last_token = now;
    if (record.timeline != nullptr) record.timeline->token(now);
    record.num_output_tokens += static_cast<int64_t>(event.tokens.size());
    generation_tokens_->increment(static_cast<double>(event.tokens.size()));
  }
  if (!event.pooled.empty()) {
    pooled_texts_->increment();
    prompt_tokens_->increment(static_cast<double>(record.num_prompt_tokens));
  }
  if (event.finish == FinishReason::kNone) return;
  if (record.timeline != nullptr) record.timeline->finished(now);
  finished(record, event.finish, now);
}

Counter& EngineMetrics::ended(FinishReason reason) {
  MetricLabels labels = labels_;
  labels.emplace_back("finished_reason", std::string(to_string(reason)));
  return registry_.counter("vllm:request_success_total", "Requests that ended, by reason.", labels);
}

void EngineMetrics::finished(const RequestRecord& record, FinishReason reason, Clock::time_point now) {
  ended(reason).increment();
  request_prompt_tokens_->observe(static_cast<double>(record.num_prompt_tokens));
  request_generation_tokens_->observe(static_cast<double>(record.num_output_tokens));
  int64_t most = record.num_output_tokens;
  if (record.answers != nullptr) most = record.answers->most_tokens = std::max(most, record.answers->most_tokens);
  const bool is_last = record.answers == nullptr || --record.answers->num_left == 0;
  if (is_last) request_most_generation_tokens_->observe(static_cast<double>(most));
  end_to_end_->observe(seconds(now - record.arrival));
  if (!record.started) return;
  request_preemptions_->observe(static_cast<double>(record.num_preemptions));
  queue_time_->observe(seconds(record.first_scheduled - record.arrival));
  inference_time_->observe(seconds(now - record.first_scheduled));
  if (record.num_output_tokens == 0) return;
  decode_time_->observe(seconds(record.last_token - record.first_token));
  if (record.num_output_tokens > 1) {
    time_per_output_token_->observe(seconds(record.last_token - record.first_token) /
                                    static_cast<double>(record.num_output_tokens - 1));
  }
}

}  // namespace quire::engine
