#include "server/otlp.h"

#include <algorithm>
#include <charconv>

#include <boost/json.hpp>

#include "base/parse_json.h"

namespace quire::server {
namespace {

namespace json = boost::json;

json::object otlp_value(const SpanValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return {{"stringValue", *text}};
  if (const auto* number = std::get_if<int64_t>(&value)) return {{"intValue", std::to_string(*number)}};
  return {{"doubleValue", std::get<double>(value)}};
}

json::object otlp_attribute(std::string_view key, const SpanValue& value) {
  return {{"key", key}, {"value", otlp_value(value)}};
}

json::object otlp_span(const Span& span) {
  json::object out{{"traceId", span.trace_id}, {"spanId", span.span_id}};
  if (!span.trace_state.empty()) out["traceState"] = span.trace_state;
  if (!span.parent_id.empty()) out["parentSpanId"] = span.parent_id;
  out["flags"] = span_flags(span);
  out["name"] = kSpanName;
  out["kind"] = kSpanKindServer;
  out["startTimeUnixNano"] = std::to_string(span.start);
  out["endTimeUnixNano"] = std::to_string(span.end);
  json::array& attributes = out.emplace("attributes", json::array()).first->value().get_array();
  for (const auto& [key, value] : span.attributes) attributes.push_back(otlp_attribute(key, value));
  json::object status;
  if (span.failed) {
    status["code"] = kSpanStatusError;
    if (!span.error.empty()) status["message"] = span.error;
  }
  out["status"] = std::move(status);
  return out;
}

}  // namespace

std::string encode_spans_as_json(const SpanSource& source, std::span<const Span> spans) {
  json::array list;
  for (const Span& span : spans) list.push_back(otlp_span(span));
  json::object resource;
  json::array about{otlp_attribute("service.name", source.service_name),
                    otlp_attribute("service.version", source.version)};
  for (const auto& [key, value] : source.attributes) about.push_back(otlp_attribute(key, value));
  resource["attributes"] = std::move(about);
  json::object scope_spans;
  scope_spans["scope"] = json::object{{"name", kSpanScope}, {"version", source.version}};
  scope_spans["spans"] = std::move(list);
  json::object resource_spans;
  resource_spans["resource"] = std::move(resource);
  resource_spans["scopeSpans"] = json::array{std::move(scope_spans)};
  json::object request;
  request["resourceSpans"] = json::array{std::move(resource_spans)};
  return json::serialize(request);
}

PartialSuccess parse_partial_success_of_json(std::string_view body) {
  PartialSuccess out;
  boost::system::error_code error;
  const json::value value = parse_json(body, error);
  if (error || !value.is_object()) return out;
  const json::value* partial = value.get_object().if_contains("partialSuccess");
  if (partial == nullptr || !partial->is_object()) return out;
  const json::object& said = partial->get_object();
  if (const json::value* rejected = said.if_contains("rejectedSpans"); rejected != nullptr) {
    if (rejected->is_int64()) {
      out.rejected = rejected->get_int64();
    } else if (rejected->is_string()) {
      const json::string& text = rejected->get_string();
      std::from_chars(text.data(), text.data() + text.size(), out.rejected);
    }
  }
  out.rejected = std::max<int64_t>(out.rejected, 0);
  if (const json::value* message = said.if_contains("errorMessage"); message != nullptr && message->is_string()) {
    out.message = message->get_string();
  }
  return out;
}

}  // namespace quire::server
