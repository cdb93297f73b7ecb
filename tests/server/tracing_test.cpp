// The span of each request to a model, as a collector has it.
#include <map>
#include <set>

#include "tests/server/collector.h"
#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kTraced = "/v1/completions";
const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736";
const std::string kParent = "00f067aa0ba902b7";

// A span with its attributes as a map.
struct Received {
  boost::json::object span;
  std::map<std::string, boost::json::value> attributes;

  std::string text(const char* key) const { return attributes.at(key).at("stringValue").as_string().c_str(); }
  int64_t number(const char* key) const { return std::stoll(attributes.at(key).at("intValue").as_string().c_str()); }
  double seconds(const char* key) const { return attributes.at(key).at("doubleValue").as_double(); }
  std::string id(const char* key) const {
    const auto* value = span.if_contains(key);
    return value == nullptr ? "" : value->as_string().c_str();
  }
  bool failed() const { return span.at("status").as_object().contains("code"); }
  std::string error() const { return span.at("status").at("message").as_string().c_str(); }
};

class TracingTest : public ServerTest {
 protected:
  void start_traced(ServerConfig config = {}, EngineConfig engine_config = {}) {
    config.spans.endpoint = collector_.url();
    config.spans.delay = std::chrono::milliseconds(1);
    start(std::move(config), std::move(engine_config));
  }
  std::vector<Received> received(size_t count) {
    EXPECT_TRUE(eventually([&] { return collector_.spans().size() >= count; })) << collector_.spans().size();
    std::vector<Received> out;
    for (boost::json::object& span : collector_.spans()) {
      Received& one = out.emplace_back();
      for (const auto& attribute : span.at("attributes").as_array()) {
        const auto [at, fresh] = one.attributes.emplace(attribute.at("key").as_string(), attribute.at("value"));
        EXPECT_TRUE(fresh) << at->first << " stands there twice";
      }
      one.span = std::move(span);
    }
    EXPECT_EQ(out.size(), count);
    return out;
  }
  Received only() { return received(1).at(0); }
  static std::string parent(const char* flags = "01") {
    return "traceparent: 00-" + kTrace + "-" + kParent + "-" + flags + "\r\n";
  }

  Collector collector_;
};

TEST_F(TracingTest, ACompletionHasVllmsAttributes) {
  start_traced();
  const auto answer = complete(R"({"prompt":"abc","max_tokens":4,"temperature":0.7,"top_p":0.9,"n":2})");
  const Received span = only();
  EXPECT_EQ(span.id("name"), "llm_request");
  EXPECT_EQ(span.span.at("kind"), 2);
  EXPECT_EQ(span.id("traceId").size(), 32u);
  EXPECT_EQ(span.id("spanId").size(), 16u);
  EXPECT_EQ(span.id("parentSpanId"), "");
  EXPECT_FALSE(span.failed());
  EXPECT_EQ(span.text("gen_ai.request.id"), answer.json().at("id").as_string());
  EXPECT_EQ(span.text("gen_ai.response.model"), "alphabet");
  EXPECT_EQ(span.number("gen_ai.request.max_tokens"), 4);
  EXPECT_EQ(span.number("gen_ai.request.n"), 2);
  EXPECT_EQ(span.seconds("gen_ai.request.temperature"), 0.7) << "not what single precision makes of it";
  EXPECT_EQ(span.seconds("gen_ai.request.top_p"), 0.9);
  EXPECT_EQ(span.number("gen_ai.usage.prompt_tokens"), 3);
  EXPECT_EQ(span.number("gen_ai.usage.completion_tokens"), 8);
  EXPECT_EQ(span.text("http.request.method"), "POST");
  EXPECT_EQ(span.text("http.route"), kTraced);
  EXPECT_EQ(span.number("http.response.status_code"), 200);
  EXPECT_EQ(span.attributes.count("error.type"), 0u);
}

TEST_F(TracingTest, ItsTimesFitTogether) {
  start_traced();
  executor_->step_microseconds = 3000;
  complete(R"({"prompt":"abc","max_tokens":8})");
  const Received span = only();
  const double queue = span.seconds("gen_ai.latency.time_in_queue");
  const double first = span.seconds("gen_ai.latency.time_to_first_token");
  const double prefill = span.seconds("gen_ai.latency.time_in_model_prefill");
  const double decode = span.seconds("gen_ai.latency.time_in_model_decode");
  const double inference = span.seconds("gen_ai.latency.time_in_model_inference");
  const double whole = span.seconds("gen_ai.latency.e2e");
  EXPECT_GE(queue, 0);
  EXPECT_NEAR(first, queue + prefill, 1e-6);
  EXPECT_NEAR(whole, queue + inference, 1e-6);
  EXPECT_GE(inference, prefill + decode - 1e-6);
  EXPECT_GE(prefill, 0.003);
  EXPECT_GE(decode, 7 * 0.003);
  const double lasted =
      static_cast<double>(std::stoll(span.id("endTimeUnixNano")) - std::stoll(span.id("startTimeUnixNano"))) * 1e-9;
  EXPECT_GE(lasted, whole);
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  EXPECT_NEAR(static_cast<double>(std::stoll(span.id("endTimeUnixNano"))) * 1e-9, now, 30);
}

TEST_F(TracingTest, AStreamOfAChatIsPartOfItsClientsTrace) {
  start_traced();
  const auto answer = post(port(), "/v1/chat/completions",
                           R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":5,"stream":true})",
                           parent() + "tracestate: vendor=1\r\nTracestate: other=2\r\nX-Request-Id: mine\r\n");
  EXPECT_EQ(answer.status, 200);
  const Received span = only();
  EXPECT_EQ(span.id("traceId"), kTrace);
  EXPECT_EQ(span.id("parentSpanId"), kParent);
  EXPECT_NE(span.id("spanId"), kParent);
  EXPECT_EQ(span.id("traceState"), "vendor=1,other=2");
  EXPECT_EQ(span.span.at("flags"), 0x301);
  EXPECT_EQ(span.text("gen_ai.request.id"), "chatcmpl-mine");
  EXPECT_EQ(span.number("gen_ai.usage.completion_tokens"), 5);
}

TEST_F(TracingTest, WhoDoesNotRecordItsTraceGetsNoSpan) {
  start_traced();
  EXPECT_EQ(post(port(), kTraced, R"({"prompt":"abc","max_tokens":1})", parent("00")).status, 200);
  EXPECT_EQ(post(port(), kTraced, R"({"prompt":"abc","max_tokens":1})", "traceparent: nonsense\r\n").status, 200);
  EXPECT_NE(only().id("traceId"), kTrace);
}

TEST_F(TracingTest, AShareOfTracesMayBeRecorded) {
  ServerConfig config;
  config.spans.sampling.ratio = 0;
  start_traced(config);
  complete(R"({"prompt":"abc","max_tokens":1})");
  post(port(), kTraced, R"({"prompt":"abc","max_tokens":1})", parent());
  EXPECT_EQ(only().id("traceId"), kTrace) << "whose parent decides";
  config.spans.sampling = {.heeds_parent = false, .ratio = 0.7};  // of 2^64: this trace's id ends below it
  start_traced(config);
  const std::string high = "00-4bf92f3577b34da6f3ce929d0e0e4736-00f067aa0ba902b7-01";
  post(port(), kTraced, R"({"prompt":"abc","max_tokens":1})", "traceparent: " + high + "\r\n");
  post(port(), kTraced, R"({"prompt":"abc","max_tokens":1})", parent("00"));
  EXPECT_EQ(received(2).at(1).id("traceId"), kTrace);
}

TEST_F(TracingTest, WhatIsRefusedHasFailed) {
  ServerConfig config;
  config.api_keys = {"key"};
  start_traced(config);
  const std::string key = "Authorization: Bearer key\r\n";
  EXPECT_EQ(post(port(), kTraced, R"({"prompt":"abc","max_tokens":1})").status, 401);
  EXPECT_EQ(post(port(), "/v1/nothing", "{}", key).status, 404);
  EXPECT_EQ(post(port(), "/tokenize", R"({"prompt":"abc"})", key).status, 200);
  EXPECT_EQ(get(port(), "/v1/models", key).status, 200);
  EXPECT_EQ(post(port(), kTraced, R"({"prompt":"abc","temperature":"hot"})", key).status, 400);
  EXPECT_EQ(post(port(), kTraced, R"({"prompt":"abc","model":"none"})", key).status, 404);
  const std::vector<Received> spans = received(2);  // who has no key makes none
  EXPECT_TRUE(spans[0].failed());
  EXPECT_EQ(spans[0].number("http.response.status_code"), 400);
  EXPECT_EQ(spans[0].text("error.type"), "400");
  EXPECT_EQ(spans[0].error(), "Bad Request");
  EXPECT_EQ(spans[0].attributes.count("gen_ai.usage.prompt_tokens"), 0u);
  EXPECT_FALSE(spans[0].text("gen_ai.request.id").empty());
  EXPECT_EQ(spans[1].number("http.response.status_code"), 404);
}

TEST_F(TracingTest, AnEngineThatFailsIsTold) {
  start_traced();
  EXPECT_EQ(complete(R"({"prompt":"a#c","max_tokens":3})").status, 500);
  complete(R"({"prompt":"a#c","max_tokens":3,"stream":true})");
  const std::vector<Received> spans = received(2);
  EXPECT_TRUE(spans[0].failed());
  EXPECT_EQ(spans[0].text("error.type"), "500");
  EXPECT_EQ(spans[1].number("http.response.status_code"), 200) << "a stream has begun by then";
  EXPECT_TRUE(spans[1].failed());
  EXPECT_EQ(spans[1].text("error.type"), "_OTHER");
  for (const Received& span : spans) EXPECT_THAT(span.error(), Not(HasSubstr("secret"))) << "of this machine";
}

TEST_F(TracingTest, AClientThatGoesAwayLeavesWhatItHad) {
  start_traced();
  executor_->step_microseconds = 2000;
  {
    Client client(port());
    client.send(http_request("POST", kTraced, R"({"prompt":"abc","max_tokens":200,"stream":true})"));
    std::string seen;
    while (seen.find("data: ") == std::string::npos) seen += client.receive_some();
  }
  const Received span = only();
  EXPECT_TRUE(span.failed());
  EXPECT_EQ(span.error(), "the client went away");
  EXPECT_EQ(span.number("http.response.status_code"), 499);
  EXPECT_GE(span.number("gen_ai.usage.completion_tokens"), 1);
  EXPECT_LT(span.number("gen_ai.usage.completion_tokens"), 200);
  EXPECT_EQ(span.attributes.count("gen_ai.latency.time_to_first_token"), 1u);
  expect_idle();
}

TEST_F(TracingTest, ABodyThatNeverEndsHasASpanToo) {
  start_traced();
  {
    Client client(port());
    client.send(std::string("POST ") + kTraced +
                " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                "Content-Length: 100\r\n\r\n{");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const Received span = only();
  EXPECT_TRUE(span.failed());
  EXPECT_EQ(span.number("http.response.status_code"), 499);
}

TEST_F(TracingTest, AnAnswerThatTheServersEndCutsOffHasFailed) {
  ServerConfig config;
  config.drain_deadline = std::chrono::milliseconds(50);
  start_traced(config);
  executor_->step_microseconds = 5000;
  Client client(port());
  client.send(http_request("POST", kTraced, R"({"prompt":"abc","max_tokens":240,"stream":true})"));
  std::string seen;
  while (seen.find("data: ") == std::string::npos) seen += client.receive_some();
  server_->drain_and_stop();
  const Received span = only();  // sent before the server was down
  EXPECT_TRUE(span.failed());
  EXPECT_THAT(span.error(), HasSubstr("cut off"));
  EXPECT_EQ(span.number("http.response.status_code"), 200);
}

TEST_F(TracingTest, AResponseInTheBackgroundIsPartOfTheOneThatAskedForIt) {
  start_traced();
  const auto answer =
      post(port(), "/v1/responses", R"({"input":"hi","max_output_tokens":5,"background":true})", parent());
  ASSERT_EQ(answer.status, 200) << answer.body;
  std::vector<Received> spans = received(2);
  if (spans[0].id("parentSpanId") != kParent) std::swap(spans[0], spans[1]);
  EXPECT_EQ(spans[0].id("parentSpanId"), kParent);
  EXPECT_EQ(spans[0].attributes.count("gen_ai.usage.completion_tokens"), 0u) << "it says that it has begun";
  EXPECT_EQ(spans[1].id("traceId"), kTrace);
  EXPECT_EQ(spans[1].id("parentSpanId"), spans[0].id("spanId"));
  EXPECT_EQ(spans[1].number("gen_ai.usage.completion_tokens"), 5);
}

TEST_F(TracingTest, RequestsBesideOneAnotherHaveASpanEach) {
  start_traced();
  constexpr int kClients = 8, kEach = 20;
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      for (int k = 0; k < kEach; ++k) {
        const std::string length = std::to_string(1 + (i + k) % 7);
        EXPECT_EQ(post(port(), kTraced, R"({"prompt":"abc","max_tokens":)" + length + "}",
                       "X-Request-Id: len-" + length + "-" + std::to_string(i * kEach + k) + "\r\n")
                      .status,
                  200);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  std::set<std::string> ids, spans;
  for (const Received& span : received(kClients * kEach)) {
    const std::string id = span.text("gen_ai.request.id");
    ids.insert(id);
    spans.insert(span.id("spanId"));
    EXPECT_EQ(std::to_string(span.number("gen_ai.usage.completion_tokens")), id.substr(id.find("len-") + 4, 1)) << id;
  }
  EXPECT_EQ(ids.size(), static_cast<size_t>(kClients * kEach));
  EXPECT_EQ(spans.size(), ids.size());
}

TEST_F(TracingTest, ACollectorThatHangsDisturbsNobody) {
  Collector silent([](size_t) { return std::string(); });
  ServerConfig config;
  config.spans.endpoint = silent.url();
  config.spans.delay = std::chrono::milliseconds(1);
  config.spans.max_queue = 5;
  config.spans.stop_timeout = std::chrono::milliseconds(100);
  start(config);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(complete(R"({"prompt":"abc","max_tokens":1})").status, 200);
  EXPECT_THAT(get(port(), "/metrics").body, testing::ContainsRegex("quire:otlp_spans_dropped_total [1-9]"));
  const auto begin = std::chrono::steady_clock::now();
  server_->drain_and_stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
}

TEST_F(TracingTest, WithoutAnEndpointNothingIsCountedAndNothingIsSent) {
  start();
  EXPECT_EQ(post(port(), kTraced, R"({"prompt":"abc","max_tokens":1})", parent()).status, 200);
  EXPECT_THAT(get(port(), "/metrics").body, Not(HasSubstr("otlp")));
}

}  // namespace
}  // namespace quire::server
