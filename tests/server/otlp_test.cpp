// Spans as bytes, and the traces that requests come with. That OpenTelemetry's own classes read these bytes so is
// scripts/check_otlp.py's to show.
#include "server/otlp.h"

#include <boost/json.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/trace_context.h"

namespace quire::server {
namespace {

Span a_span() {
  return {.trace_id = "4bf92f3577b34da6a3ce929d0e0e4736",
          .span_id = "00f067aa0ba902b7",
          .parent_id = "b7ad6b7169203331",
          .trace_state = "vendor=1,other=2",
          .start = 1'700'000'000'123'456'789,
          .end = 1'700'000'001'000'000'000,
          .failed = true,
          .error = "Not \"Found\"",
          .attributes = {{"gen_ai.request.id", "cmpl-1"},
                         {"gen_ai.usage.prompt_tokens", int64_t{7'000'000'000}},
                         {"gen_ai.latency.e2e", 0.25}}};
}

Span a_root() {
  return {.trace_id = "00000000000000000000000000000001", .span_id = "0000000000000002", .start = 1, .end = 2};
}

const SpanSource kSource{.service_name = "front", .version = "1.2", .attributes = {{"zone", "a"}}};

TEST(Otlp, SpansInJson) {
  const boost::json::value expected = boost::json::parse(R"({"resourceSpans": [{
    "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "front"}},
                                {"key": "service.version", "value": {"stringValue": "1.2"}},
                                {"key": "zone", "value": {"stringValue": "a"}}]},
    "scopeSpans": [{
      "scope": {"name": "quire", "version": "1.2"},
      "spans": [
        {"traceId": "4bf92f3577b34da6a3ce929d0e0e4736", "spanId": "00f067aa0ba902b7", "traceState": "vendor=1,other=2",
         "parentSpanId": "b7ad6b7169203331", "flags": 769, "name": "llm_request", "kind": 2,
         "startTimeUnixNano": "1700000000123456789", "endTimeUnixNano": "1700000001000000000",
         "attributes": [{"key": "gen_ai.request.id", "value": {"stringValue": "cmpl-1"}},
                        {"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "7000000000"}},
                        {"key": "gen_ai.latency.e2e", "value": {"doubleValue": 0.25}}],
         "status": {"code": 2, "message": "Not \"Found\""}},
        {"traceId": "00000000000000000000000000000001", "spanId": "0000000000000002", "flags": 257,
         "name": "llm_request", "kind": 2, "startTimeUnixNano": "1", "endTimeUnixNano": "2", "attributes": [],
         "status": {}}]}]}]})");
  const Span spans[] = {a_span(), a_root()};
  EXPECT_EQ(boost::json::parse(encode_spans_as_json(kSource, spans)), expected);
}

// Made by protobuf's own library of the request above; scripts/check_otlp.py makes it again.
TEST(Otlp, SpansInProtobuf) {
  const Span spans[] = {a_span(), a_root()};
  const std::string encoded = encode_spans_as_protobuf(kSource, spans);
  std::string digits;
  for (const char c : encoded) {
    digits += "0123456789abcdef"[static_cast<uint8_t>(c) >> 4];
    digits += "0123456789abcdef"[static_cast<uint8_t>(c) & 15];
  }
  EXPECT_EQ(digits,
            "0af3020a400a170a0c736572766963652e6e616d6512070a0566726f6e740a180a0f736572766963652e76657273696f6e12"
            "050a03312e320a0b0a047a6f6e6512030a016112ae020a0c0a0571756972651203312e3212d6010a104bf92f3577b34da6a3"
            "ce929d0e0e4736120800f067aa0ba902b71a1076656e646f723d312c6f746865723d322208b7ad6b71692033312a0b6c6c6d"
            "5f7265717565737430023915cd853dfe9c97174100cac471fe9c97174a1d0a1167656e5f61692e726571756573742e696412"
            "080a06636d706c2d314a240a1a67656e5f61692e75736167652e70726f6d70745f746f6b656e73120618808cee891a4a1f0a"
            "1267656e5f61692e6c6174656e63792e653265120921000000000000d03f7a0f120b4e6f742022466f756e64221802850101"
            "03000012450a1000000000000000000000000000000001120800000000000000022a0b6c6c6d5f7265717565737430023901"
            "000000000000004102000000000000007a00850101010000");
}

TEST(Otlp, ACollectorSaysWhatItRefuses) {
  const auto json = [](const char* text) { return parse_partial_success_of_json(text); };
  EXPECT_EQ(json(R"({"partialSuccess":{"rejectedSpans":"3","errorMessage":"too old"}})").rejected, 3);
  EXPECT_EQ(json(R"({"partialSuccess":{"rejectedSpans":3,"errorMessage":"too old"}})").message, "too old");
  for (const char* text : {"", "{}", "[]", "not JSON", R"({"partialSuccess":null})", R"({"partialSuccess":[]})",
                           R"({"partialSuccess":{"rejectedSpans":"-3"}})",
                           R"({"partialSuccess":{"rejectedSpans":{},"errorMessage":7}})"}) {
    EXPECT_EQ(json(text).rejected, 0) << text;
    EXPECT_EQ(json(text).message, "") << text;
  }
  const auto protobuf = [](std::string_view bytes) { return parse_partial_success_of_protobuf(bytes); };
  const std::string told("\x0a\x09\x08\x03\x12\x05small", 11);
  EXPECT_EQ(protobuf(told).rejected, 3);
  EXPECT_EQ(protobuf(told).message, "small");
  EXPECT_EQ(protobuf("").rejected, 0);
  for (size_t i = 0; i < told.size(); ++i) protobuf(told.substr(0, i));
  EXPECT_EQ(protobuf("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff").rejected, 0);
  EXPECT_EQ(protobuf(std::string_view("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11)).rejected, 0);
}

TEST(TraceContext, OnlyVersion00WithIdsIsOne) {
  const std::string good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  const auto context = parse_traceparent(good);
  ASSERT_TRUE(context);
  EXPECT_EQ(context->trace_id, "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(context->span_id, "00f067aa0ba902b7");
  EXPECT_TRUE(context->sampled);
  EXPECT_EQ(format_traceparent(*context), good);
  EXPECT_FALSE(parse_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00")->sampled);
  EXPECT_FALSE(parse_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-02")->sampled);
  EXPECT_TRUE(parse_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff")->sampled);
  EXPECT_FALSE(parse_traceparent(""));
  EXPECT_FALSE(parse_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"));
}

TEST(TraceContext, StatesAreJoinedAndBounded) {
  HttpRequest request;
  EXPECT_EQ(tracestate_of(request), "");
  request.headers = {{"TraceState", "a=1"}, {"x", "y"}, {"tracestate", "b=2,c=3"}};
  EXPECT_EQ(tracestate_of(request), "a=1,b=2,c=3");
  request.headers.emplace_back("tracestate", std::string(512, 'x'));
  EXPECT_EQ(tracestate_of(request), "");
  request.headers = {{"tracestate", "a=\xff"}};
  EXPECT_EQ(tracestate_of(request), "");
}

}  // namespace
}  // namespace quire::server
