#include "server/request_span.h"

#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "server/random_id.h"

namespace quire::server {
namespace {

constexpr int kClientGone = 499;

// What was written, not what single precision makes of it: 0.7 is no 0.699999988.
double as_written(float value) {
  return std::strtod(fmt::format("{}", value).c_str(), nullptr);
}

// As other programs decide for the same trace: by the last 8 bytes of its id.
bool is_sampled(const std::string& trace_id, double ratio) {
  const uint64_t number = std::strtoull(trace_id.substr(16).c_str(), nullptr, 16);
  return ratio >= 1 || static_cast<double>(number) < ratio * 0x1p64;
}

int64_t unix_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

RequestSpan::RequestSpan(std::shared_ptr<SpanExporter> exporter, const HttpRequest& request,
                         const std::string& trace_id, const std::string& parent_id)
    : exporter_(std::move(exporter)),
      context_{.trace_id = trace_id, .span_id = random_id().substr(0, 16), .sampled = true},
      id_(request.id) {
  span_.trace_id = context_.trace_id;
  span_.span_id = context_.span_id;
  span_.parent_id = parent_id;
  if (!parent_id.empty()) span_.trace_state = tracestate_of(request);
  span_.start = unix_nanoseconds();
  span_.attributes = {{"http.request.method", request.method},
                      {"http.route", request.handler.empty() ? request.path : request.handler}};
}

RequestSpan::~RequestSpan() {
  end(kClientGone);
}

void RequestSpan::asked(std::string_view id, std::string_view model, int64_t num_prompt_tokens) {
  const std::lock_guard lock(mutex_);
  id_ = id;
  reached_engine_ = true;
  span_.attributes.emplace_back("gen_ai.response.model", std::string(model));
  span_.attributes.emplace_back("gen_ai.usage.prompt_tokens", num_prompt_tokens);
}

void RequestSpan::asked(const SamplingParams& params) {
  const std::lock_guard lock(mutex_);
  span_.attributes.emplace_back("gen_ai.request.temperature", as_written(params.temperature));
  span_.attributes.emplace_back("gen_ai.request.top_p", as_written(params.top_p));
  span_.attributes.emplace_back("gen_ai.request.n", int64_t{params.n});
  if (params.max_tokens) span_.attributes.emplace_back("gen_ai.request.max_tokens", int64_t{*params.max_tokens});
}

void RequestSpan::generated(int64_t num_tokens) {
  const std::lock_guard lock(mutex_);
  num_generated_ += num_tokens;
}

void RequestSpan::failed(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  if (span_.failed) return;
  span_.failed = true;
  span_.error = reason;
}

// Seconds; what has not come to pass is left out.
void RequestSpan::add_times() {
  const auto add = [&](const char* name, double seconds) {
    if (seconds >= 0) span_.attributes.emplace_back(name, seconds);
  };
  add("gen_ai.latency.time_in_queue", timeline_->in_queue());
  add("gen_ai.latency.time_to_first_token", timeline_->to_first_token());
  add("gen_ai.latency.e2e", timeline_->end_to_end());
  add("gen_ai.latency.time_in_model_prefill", timeline_->in_prefill());
  add("gen_ai.latency.time_in_model_decode", timeline_->in_decode());
  add("gen_ai.latency.time_in_model_inference", timeline_->in_inference());
}

void RequestSpan::end(int status) {
  Span span;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(over_, true)) return;
    span_.end = span_.start + std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count();
    span_.attributes.emplace_back("gen_ai.request.id", id_);
    if (reached_engine_) {
      span_.attributes.emplace_back("gen_ai.usage.completion_tokens", num_generated_);
      add_times();
    }
    span_.attributes.emplace_back("http.response.status_code", int64_t{status});
    if (status >= 400) {
      span_.attributes.emplace_back("error.type", std::to_string(status));
      if (!span_.failed) {
        span_.error = status == kClientGone ? "the client went away" : std::string(reason_phrase(status));
      }
      span_.failed = true;
    } else if (span_.failed) {
      span_.attributes.emplace_back("error.type", "_OTHER");
    }
    span = std::move(span_);
  }
  exporter_->add(std::move(span));
}

void begin_span(const std::shared_ptr<SpanExporter>& exporter, HttpRequest& request) {
  if (exporter == nullptr) return;
  const auto parent = parse_traceparent(request.traceparent);
  const SpanSampling& sampling = exporter->options().sampling;
  const std::string trace_id = parent ? parent->trace_id : random_id();
  const bool records = parent && sampling.heeds_parent ? parent->sampled : is_sampled(trace_id, sampling.ratio);
  if (!records) return;
  request.span = std::make_shared<RequestSpan>(exporter, request, trace_id, parent ? parent->span_id : std::string());
}

}  // namespace quire::server
