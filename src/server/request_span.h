// The span of one request to a model: what it asked, what it was given and how long that took, under vLLM's names. Each
// part of the server tells it what it knows; whoever ends the answer ends the span.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "server/http.h"
#include "server/span_exporter.h"
#include "server/trace_context.h"
#include "types/request_timeline.h"
#include "types/sampling_params.h"

namespace quire::server {

// Any thread. What comes after end() changes nothing.
class RequestSpan {
 public:
  // Begins now. parent_id: of the span that asked; empty: the trace begins here.
  RequestSpan(std::shared_ptr<SpanExporter> exporter, const HttpRequest& request, const std::string& trace_id,
              const std::string& parent_id);
  ~RequestSpan();  // end(499): whoever asked went away before there was anything to answer
  RequestSpan(const RequestSpan&) = delete;
  RequestSpan& operator=(const RequestSpan&) = delete;

  // It goes to the engine: under which id, for which model, with so many tokens of prompts.
  void asked(std::string_view id, std::string_view model, int64_t num_prompt_tokens);
  // Of one that generates.
  void asked(const SamplingParams& params);
  void generated(int64_t num_tokens);
  // It fails, whatever the status of HTTP says: a stream has one already. The first reason counts.
  void failed(std::string_view reason);
  // With the answer's status of HTTP; from 400 on the span has failed. Adds it to the exporter's.
  void end(int status);

  // Where the engine notes the request's times.
  const std::shared_ptr<RequestTimeline>& timeline() const { return timeline_; }
  // Of a span that is part of this one.
  std::string traceparent() const { return format_traceparent(context_); }

 private:
  using Clock = std::chrono::steady_clock;
  void add_times();

  const std::shared_ptr<SpanExporter> exporter_;
  const std::shared_ptr<RequestTimeline> timeline_ = std::make_shared<RequestTimeline>();
  const Clock::time_point start_ = Clock::now();
  const TraceContext context_;  // of this span
  std::mutex mutex_;
  // Guarded by it.
  Span span_;
  std::string id_;
  bool reached_engine_ = false;
  int64_t num_generated_ = 0;
  bool over_ = false;
};

// Gives a request to a model its span, if it is one of those that are traced (SpanSampling). exporter: nullptr: none
// is.
void begin_span(const std::shared_ptr<SpanExporter>& exporter, HttpRequest& request);

}  // namespace quire::server
