// Spans on their way to a collector: how many wait, what is tried again, and that nobody waits for it.
#include "server/span_exporter.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/collector.h"

namespace quire::server {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using ExportClock = std::chrono::steady_clock;

Span numbered(int number) {
  return {
      .trace_id = std::string(32, '1'), .span_id = std::string(16, '2'), .attributes = {{"number", int64_t{number}}}};
}

SpanExportOptions hasty() {
  return {.endpoint = "http://127.0.0.1:1/v1/traces",
          .delay = milliseconds(1),
          .first_wait = milliseconds(1),
          .stop_timeout = milliseconds(5000)};
}

double exported(const Metrics& metrics) {
  return const_cast<Metrics&>(metrics)
      .counter("quire:otlp_spans_exported_total", "Spans that the collector has taken.")
      .value();
}
double dropped(const Metrics& metrics) {
  return const_cast<Metrics&>(metrics)
      .counter("quire:otlp_spans_dropped_total",
               "Spans that were lost: too many waited, or the collector did not take them.")
      .value();
}

// How many spans a body in JSON has.
size_t num_spans(const std::string& body) {
  return boost::json::parse(body).at_pointer("/resourceSpans/0/scopeSpans/0/spans").as_array().size();
}

// Keeps a collector busy until it is told.
struct Gate {
  std::mutex mutex;
  std::condition_variable bell;
  bool open = false;
  void wait() {
    std::unique_lock lock(mutex);
    bell.wait(lock, [&] { return open; });
  }
  void let_through() {
    const std::lock_guard lock(mutex);
    open = true;
    bell.notify_all();
  }
};

TEST(SpanExporter, SpansGoTogetherAndAllOfThemBeforeItStops) {
  Metrics metrics;
  std::vector<size_t> sizes;
  SpanExportOptions options = hasty();
  options.max_batch = 4;
  options.delay = std::chrono::hours(1);
  const auto exporter = SpanExporter::start(options, "1", metrics, [&](const std::string& body) -> Result<PostOutcome> {
    sizes.push_back(num_spans(body));
    return PostOutcome{.status = 200};
  });
  for (int i = 0; i < 10; ++i) exporter->add(numbered(i));
  exporter->stop();
  EXPECT_THAT(sizes, ElementsAre(4, 4, 2)) << "and no wait of an hour for the last two";
  EXPECT_EQ(exported(metrics), 10);
  EXPECT_EQ(dropped(metrics), 0);
  exporter->add(numbered(11));  // nobody is left to send it
  EXPECT_EQ(sizes.size(), 3u);
}

TEST(SpanExporter, ALoneSpanGoesAfterTheDelay) {
  Metrics metrics;
  std::atomic<int> posts{0};
  SpanExportOptions options = hasty();
  options.delay = milliseconds(30);
  const auto exporter = SpanExporter::start(options, "1", metrics, [&](const std::string&) -> Result<PostOutcome> {
    ++posts;
    return PostOutcome{.status = 200};
  });
  const auto begin = ExportClock::now();
  exporter->add(numbered(0));
  while (posts == 0 && ExportClock::now() - begin < std::chrono::seconds(10)) std::this_thread::yield();
  EXPECT_EQ(posts, 1);
  EXPECT_GE(ExportClock::now() - begin, milliseconds(30));
}

TEST(SpanExporter, BeyondTheBoundSpansAreDroppedAndNobodyWaits) {
  Metrics metrics;
  Gate gate;
  SpanExportOptions options = hasty();
  options.max_queue = 100;
  options.max_batch = 10;
  std::atomic<bool> busy = false;
  const auto exporter = SpanExporter::start(options, "1", metrics, [&](const std::string&) -> Result<PostOutcome> {
    busy = true;
    gate.wait();
    return PostOutcome{.status = 200};
  });
  for (int i = 0; i < 10; ++i) exporter->add(numbered(i));
  while (!busy) std::this_thread::yield();
  const auto begin = ExportClock::now();
  for (int i = 0; i < 100'000; ++i) exporter->add(numbered(i));
  EXPECT_LT(ExportClock::now() - begin, std::chrono::seconds(5));
  // The first batch may have been less than ten: its rest is then among those that wait.
  EXPECT_GE(dropped(metrics), 100'000 - 100);
  gate.let_through();
  exporter->stop();
  EXPECT_EQ(exported(metrics) + dropped(metrics), 100'010);
  EXPECT_GE(exported(metrics), 101);
}

// What the nth post of a batch gets, until all are over; then how often it was sent, and what became of its 5 spans.
struct Course {
  int posts = 0;
  double exported = 0;
  double dropped = 0;
};
Course course_of(const std::vector<Result<PostOutcome>>& outcomes, SpanExportOptions options = hasty()) {
  Metrics metrics;
  std::atomic<int> posts{0};
  options.max_batch = 5;
  options.delay = std::chrono::hours(1);
  const auto exporter = SpanExporter::start(options, "1", metrics, [&](const std::string&) -> Result<PostOutcome> {
    const auto number = static_cast<size_t>(posts++);
    return number < outcomes.size() ? outcomes[number] : outcomes.back();
  });
  for (int i = 0; i < 5; ++i) exporter->add(numbered(i));
  const auto begin = ExportClock::now();
  while (exported(metrics) + dropped(metrics) < 5 && ExportClock::now() - begin < std::chrono::seconds(10)) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  exporter->stop();
  return {posts, exported(metrics), dropped(metrics)};
}

Result<PostOutcome> status(int code, const std::string& body = "") {
  return PostOutcome{.status = code, .body = body};
}

void expect_course(const Course& course, int posts, double exported, double dropped) {
  EXPECT_EQ(course.posts, posts);
  EXPECT_EQ(course.exported, exported);
  EXPECT_EQ(course.dropped, dropped);
}

TEST(SpanExporter, WhatMayPassIsTriedAgain) {
  for (const int code : {429, 502, 503, 504}) {
    SCOPED_TRACE(code);
    expect_course(course_of({status(code), status(code), status(200)}), 3, 5, 0);
  }
  expect_course(course_of({unavailable("no connection"), deadline_exceeded("slow"), data_loss("garbage"), status(202)}),
                4, 5, 0);
}

TEST(SpanExporter, WhatIsTriedInVainIsDropped) {
  expect_course(course_of({status(503)}), 5, 0, 5);
  expect_course(course_of({unavailable("no connection")}), 5, 0, 5);
}

TEST(SpanExporter, WhatWillNotPassIsSentOnce) {
  for (const int code : {301, 400, 401, 404, 413, 500, 501}) {
    SCOPED_TRACE(code);
    expect_course(course_of({status(code)}), 1, 0, 5);
  }
}

TEST(SpanExporter, SpansThatTheCollectorRefusesAreCounted) {
  expect_course(course_of({status(200, R"({"partialSuccess":{"rejectedSpans":"2","errorMessage":"no"}})")}), 1, 3, 2);
  expect_course(course_of({status(200, R"({"partialSuccess":{"rejectedSpans":"99"}})")}), 1, 0, 5);
  expect_course(course_of({status(200, "what is this")}), 1, 5, 0);
}

TEST(SpanExporter, ThePauseIsWhatTheCollectorAsksFor) {
  SpanExportOptions options = hasty();
  options.first_wait = std::chrono::hours(1);
  expect_course(course_of({PostOutcome{.status = 429, .retry_after = milliseconds(1)}, status(200)}, options), 2, 5, 0);
  options.most_wait = milliseconds(1);
  expect_course(course_of({PostOutcome{.status = 503, .retry_after = std::chrono::hours(1)}, status(200)}, options), 2,
                5, 0);
}

TEST(SpanExporter, AnExceptionCostsOneTry) {
  Metrics metrics;
  int posts = 0;
  const auto exporter = SpanExporter::start(hasty(), "1", metrics, [&](const std::string&) -> Result<PostOutcome> {
    if (++posts == 1) throw std::bad_alloc();
    return PostOutcome{.status = 200};
  });
  exporter->add(numbered(0));
  const auto begin = ExportClock::now();
  while (exported(metrics) < 1 && ExportClock::now() - begin < std::chrono::seconds(10)) std::this_thread::yield();
  exporter->stop();
  EXPECT_EQ(posts, 2);
}

TEST(SpanExporter, ACollectorThatHangsHoldsNoServerThatStops) {
  Metrics metrics;
  const auto gate = std::make_shared<Gate>();
  const auto entered = std::make_shared<std::atomic<bool>>(false);
  const auto left = std::make_shared<std::atomic<bool>>(false);
  SpanExportOptions options = hasty();
  options.stop_timeout = milliseconds(100);
  auto exporter =
      SpanExporter::start(options, "1", metrics, [gate, entered, left](const std::string&) -> Result<PostOutcome> {
        *entered = true;
        gate->wait();
        *left = true;
        return PostOutcome{.status = 200};
      });
  exporter->add(numbered(0));
  while (!*entered) std::this_thread::yield();
  for (int i = 0; i < 4; ++i) exporter->add(numbered(i));
  const auto begin = ExportClock::now();
  exporter->stop();
  EXPECT_LT(ExportClock::now() - begin, std::chrono::seconds(4));
  EXPECT_EQ(exported(metrics), 0);
  EXPECT_EQ(dropped(metrics), 5) << "the one under way too";
  exporter.reset();
  gate->let_through();  // what it does now is nobody's any more
  while (!*left) std::this_thread::yield();
  EXPECT_EQ(exported(metrics), 0);
}

TEST(SpanExporter, APauseEndsWhenTheServerStops) {
  Metrics metrics;
  std::atomic<int> posts{0};
  SpanExportOptions options = hasty();
  options.first_wait = std::chrono::hours(1);
  options.most_wait = std::chrono::hours(1);
  const auto exporter = SpanExporter::start(options, "1", metrics, [&](const std::string&) -> Result<PostOutcome> {
    return PostOutcome{.status = ++posts == 1 ? 503 : 200};
  });
  exporter->add(numbered(0));
  while (posts == 0) std::this_thread::yield();
  exporter->stop();
  EXPECT_EQ(posts, 2) << "a last try";
  EXPECT_EQ(exported(metrics), 1);
}

TEST(SpanExporter, OverHttpWithItsHeaders) {
  Collector collector([](size_t number) {
    return number == 0 ? Collector::answer("503 Service Unavailable", "", "Retry-After: 0\r\n") : Collector::ok();
  });
  Metrics metrics;
  SpanExportOptions options = hasty();
  options.endpoint = collector.url();
  options.headers = {{"X-Tenant", "a b"}, {"Authorization", "Bearer secret"}};
  options.first_wait = std::chrono::hours(1);
  auto exporter = SpanExporter::start(options, "1.2", metrics);
  ASSERT_TRUE(exporter.ok()) << exporter.status().message();
  (*exporter)->add(numbered(7));
  const auto begin = ExportClock::now();
  while (exported(metrics) < 1 && ExportClock::now() - begin < std::chrono::seconds(10)) std::this_thread::yield();
  (*exporter)->stop();
  ASSERT_EQ(collector.heads().size(), 2u);
  const std::string head = collector.heads()[1];
  EXPECT_THAT(head, testing::StartsWith("POST /v1/traces HTTP/1.1\r\n"));
  for (const char* field : {"Content-Type: application/json\r\n", "User-Agent: quire/1.2\r\n", "X-Tenant: a b\r\n",
                            "Authorization: Bearer secret\r\n"}) {
    EXPECT_THAT(head, HasSubstr(field));
  }
  EXPECT_EQ(collector.bodies()[0], collector.bodies()[1]);
  EXPECT_EQ(collector.spans().size(), 2u);
}

TEST(SpanExporter, ProtobufIsSentAsSuch) {
  Collector collector;
  Metrics metrics;
  SpanExportOptions options = hasty();
  options.endpoint = collector.url();
  options.encoding = SpanEncoding::kProtobuf;
  auto exporter = SpanExporter::start(options, "1", metrics);
  ASSERT_TRUE(exporter.ok());
  (*exporter)->add(numbered(7));
  (*exporter)->stop();
  ASSERT_EQ(collector.heads().size(), 1u);
  EXPECT_THAT(collector.heads()[0], HasSubstr("Content-Type: application/x-protobuf\r\n"));
  const Span spans[] = {numbered(7)};
  EXPECT_EQ(collector.bodies()[0], encode_spans_as_protobuf({.service_name = "quire", .version = "1"}, spans));
}

TEST(SpanExporter, WhatCannotBeSentIsSaidAtTheStart) {
  Metrics metrics;
  SpanExportOptions options = hasty();
  options.endpoint = "grpc://127.0.0.1:4317";
  EXPECT_FALSE(SpanExporter::start(options, "1", metrics).ok());
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"", "x"}, {"a b", "x"}, {"a:", "x"}, {"a", "x\r\nb: c"}, {"a", "\xc3\xa4"}}) {
    options = hasty();
    options.headers = {{name, value}};
    const auto exporter = SpanExporter::start(options, "1", metrics);
    ASSERT_FALSE(exporter.ok()) << name << value;
    EXPECT_THAT(exporter.status().message(), testing::Not(HasSubstr("b: c"))) << "it may be a secret";
  }
}

}  // namespace
}  // namespace quire::server
