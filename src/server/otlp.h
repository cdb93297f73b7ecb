// Spans as OpenTelemetry's collectors take them by HTTP: opentelemetry-proto's ExportTraceServiceRequest, in JSON as
// OTLP has it (ids in hexadecimal, 64-bit integers as strings) or in protobuf.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace quire::server {

using SpanValue = std::variant<std::string, int64_t, double>;  // text is UTF-8, numbers are finite

struct Span {
  std::string trace_id;     // 32 hexadecimal digits
  std::string span_id;      // 16
  std::string parent_id;    // 16; empty: a trace begins here
  std::string trace_state;  // W3C's tracestate
  int64_t start = 0;        // nanoseconds since the Unix epoch
  int64_t end = 0;
  bool failed = false;
  std::string error;  // why, for a person
  std::vector<std::pair<std::string, SpanValue>> attributes;
};

// Who sends them.
struct SpanSource {
  std::string service_name;
  std::string version;
  std::vector<std::pair<std::string, std::string>> attributes = {};  // what else is to be said
};

// An ExportTraceServiceRequest of spans that are all named "llm_request", of kind SERVER, as vLLM's are.
std::string encode_spans_as_json(const SpanSource& source, std::span<const Span> spans);
std::string encode_spans_as_protobuf(const SpanSource& source, std::span<const Span> spans);

inline constexpr const char* kSpanName = "llm_request";
inline constexpr const char* kSpanScope = "quire";  // OpenTelemetry calls it the instrumentation's
inline constexpr int kSpanKindServer = 2;           // SPAN_KIND_SERVER
inline constexpr int kSpanStatusError = 2;          // STATUS_CODE_ERROR

// SpanFlags: it is sampled, and whether its parent is remote is known (and so it is, where there is one).
inline uint32_t span_flags(const Span& span) {
  constexpr uint32_t kSampled = 0x1, kKnowsRemote = 0x100, kIsRemote = 0x200;
  return kSampled | kKnowsRemote | (span.parent_id.empty() ? 0 : kIsRemote);
}

// What a collector says of a request that it took: how many of its spans it refused, and why.
struct PartialSuccess {
  int64_t rejected = 0;
  std::string message;
};
// Of an ExportTraceServiceResponse, which comes in the request's encoding; whatever cannot be read says nothing.
PartialSuccess parse_partial_success_of_json(std::string_view body);
PartialSuccess parse_partial_success_of_protobuf(std::string_view body);

}  // namespace quire::server
