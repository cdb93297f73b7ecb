#include "server/trace_context.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/hex.h"

namespace quire::server {
namespace {

constexpr size_t kMostTracestate = 512;  // what everybody has to pass on, at least

bool is_printable_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

bool equals_ignoring_case(std::string_view a, std::string_view lower) {
  return std::equal(a.begin(), a.end(), lower.begin(), lower.end(),
                    [](char x, char y) { return (x >= 'A' && x <= 'Z' ? x - 'A' + 'a' : x) == y; });
}

}  // namespace

std::optional<TraceContext> parse_traceparent(std::string_view text) {
  constexpr std::string_view kForm = "00-tttttttttttttttttttttttttttttttt-ssssssssssssssss-ff";
  if (text.size() != kForm.size()) return std::nullopt;
  const auto fits = [](char c, char form) {
    return form == '-' || form == '0' ? c == form : (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  };
  const auto is_zero = [](std::string_view id) { return id.find_first_not_of('0') == std::string_view::npos; };
  const std::string_view trace = text.substr(3, 32);
  const std::string_view span = text.substr(36, 16);
  if (!std::equal(text.begin(), text.end(), kForm.begin(), fits) || is_zero(trace) || is_zero(span)) {
    return std::nullopt;
  }
  return TraceContext{std::string(trace), std::string(span), (hex_digit(text.back()) & 1) != 0};
}

std::string format_traceparent(const TraceContext& context) {
  return fmt::format("00-{}-{}-{}", context.trace_id, context.span_id, context.sampled ? "01" : "00");
}

std::string tracestate_of(const HttpRequest& request) {
  std::string state;
  for (const auto& [name, value] : request.headers) {
    if (!equals_ignoring_case(name, "tracestate") || value.empty()) continue;
    if (!state.empty()) state += ',';
    state += value;
    if (state.size() > kMostTracestate) return {};
  }
  return is_printable_ascii(state) ? state : std::string();
}

}  // namespace quire::server
