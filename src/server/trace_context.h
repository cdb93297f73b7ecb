// W3C's Trace Context, Level 1: which trace of somebody else's a request belongs to.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/http.h"

namespace quire::server {

struct TraceContext {
  std::string trace_id;  // 32 hexadecimal digits in lower case
  std::string span_id;   // 16: of the span that asked
  bool sampled = false;  // whether the one who asked records the trace
};

// Version 00: "00-" trace "-" span "-" flags, in lower-case hexadecimal, the first two not 0; anything else is none.
std::optional<TraceContext> parse_traceparent(std::string_view text);
std::string format_traceparent(const TraceContext& context);

// What the request's `tracestate` fields say, joined; empty where they are longer than 512 characters or hold others
// than printable ones of ASCII.
std::string tracestate_of(const HttpRequest& request);

}  // namespace quire::server
