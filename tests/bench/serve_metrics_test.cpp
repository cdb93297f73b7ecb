#include "bench/serve_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace quire::bench {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;
using testing::Not;

RequestOutcome answered(double start, double ttft, std::vector<double> itls, int64_t tokens) {
  RequestOutcome outcome{.success = true, .prompt_len = 10, .output_tokens = tokens, .start = start, .ttft = ttft};
  outcome.latency = ttft;
  for (const double itl : itls) outcome.latency += itl;
  outcome.itls = std::move(itls);
  return outcome;
}

RequestOutcome failed(FailureKind kind) {
  return {.success = false, .failure = kind, .error = "x"};
}

const std::vector<double> kPercents = {50, 99};

TEST(ServeMetrics, CountsTokensAndTimesOfWhatWasAnswered) {
  const std::vector<RequestOutcome> outcomes = {answered(0, 0.1, {0.2, 0.2}, 3), answered(0.5, 0.3, {}, 1)};
  const ServeMetrics metrics = compute_metrics(outcomes, 2.0, kPercents, {});
  EXPECT_EQ(metrics.completed, 2);
  EXPECT_EQ(metrics.failed, 0);
  EXPECT_EQ(metrics.total_input, 20);
  EXPECT_EQ(metrics.total_output, 4);
  EXPECT_THAT(metrics.request_throughput, DoubleNear(1, 1e-12));
  EXPECT_THAT(metrics.output_throughput, DoubleNear(2, 1e-12));
  EXPECT_THAT(metrics.total_token_throughput, DoubleNear(12, 1e-12));
  EXPECT_THAT(metrics.ttft.mean, DoubleNear(200, 1e-9));
  EXPECT_THAT(metrics.tpot.mean, DoubleNear(200, 1e-9));  // an answer of one token has none
  EXPECT_THAT(metrics.itl.median, DoubleNear(200, 1e-9));
  EXPECT_THAT(metrics.e2el.median, DoubleNear(400, 1e-9));
  EXPECT_FALSE(metrics.request_goodput.has_value());
}

TEST(ServeMetrics, SeveralTokensInOneEventLowerTheTimePerTokenAndNotTheTimeBetweenEvents) {
  const std::vector<RequestOutcome> outcomes = {answered(0, 0.1, {0.4}, 5)};
  const ServeMetrics metrics = compute_metrics(outcomes, 1.0, kPercents, {});
  EXPECT_THAT(metrics.tpot.mean, DoubleNear(100, 1e-9));
  EXPECT_THAT(metrics.itl.mean, DoubleNear(400, 1e-9));
}

TEST(ServeMetrics, FailuresAreCountedByKindAndGiveNoTimes) {
  const std::vector<RequestOutcome> outcomes = {answered(0, 0.1, {}, 1),      failed(FailureKind::kConnection),
                                                failed(FailureKind::kStatus), failed(FailureKind::kStatus),
                                                failed(FailureKind::kCut),    failed(FailureKind::kMalformed)};
  const ServeMetrics metrics = compute_metrics(outcomes, 1.0, kPercents, {});
  EXPECT_EQ(metrics.completed, 1);
  EXPECT_EQ(metrics.failed, 5);
  const boost::json::object json = metrics_json(metrics, {});
  EXPECT_EQ(json.at("failed_by_kind").at("status").as_int64(), 2);
  EXPECT_EQ(json.at("failed_by_kind").at("connection").as_int64(), 1);
  EXPECT_EQ(json.at("failed_by_kind").at("timeout").as_int64(), 0);
  EXPECT_THAT(metrics_table(metrics, {}, {}), HasSubstr("  status:                                2"));
}

TEST(ServeMetrics, WhenAllFailedEveryFigureIsZero) {
  const std::vector<RequestOutcome> outcomes = {failed(FailureKind::kConnection)};
  const ServeMetrics metrics = compute_metrics(outcomes, 0.0, kPercents, {});
  EXPECT_EQ(metrics.output_throughput, 0);
  EXPECT_EQ(metrics.max_concurrent_requests, 0);
  EXPECT_EQ(metrics.ttft.percentiles[1].second, 0);
}

TEST(ServeMetrics, PeaksAreThoseOfOneSecond) {
  const std::vector<RequestOutcome> outcomes = {answered(10, 0.5, {0.1, 0.1}, 3), answered(10.2, 0.1, {}, 1),
                                                answered(12, 0.5, {}, 1)};
  const ServeMetrics metrics = compute_metrics(outcomes, 3.0, kPercents, {});
  EXPECT_THAT(metrics.max_output_tokens_per_s, DoubleNear(4, 1e-9));
  EXPECT_EQ(metrics.max_concurrent_requests, 2);
}

TEST(ServeMetrics, AGoodRequestKeepsEveryBound) {
  const std::vector<RequestOutcome> outcomes = {
      answered(0, 0.1, {0.02, 0.02}, 3),  // good
      answered(0, 0.6, {0.02}, 2),        // late
      answered(0, 0.1, {0.09}, 2),        // slow
      answered(0, 0.5, {}, 1),            // just in time; no token after the first to be slow
      failed(FailureKind::kCut),
  };
  const std::vector<std::string> words = {"ttft:500", "tpot:50"};
  const auto goodput = parse_goodput(words);
  ASSERT_TRUE(goodput.ok());
  EXPECT_EQ(compute_metrics(outcomes, 4.0, kPercents, *goodput).request_goodput, 0.5);
}

TEST(ServeMetrics, AGoodputThatIsNotOneIsRefused) {
  for (const char* word : {"itl:5", "ttft", "ttft:", "ttft:fast", "ttft:-1", "ttft:nan", ":5", ""}) {
    const std::vector<std::string> words = {word};
    EXPECT_FALSE(parse_goodput(words).ok()) << word;
  }
}

TEST(ServeMetrics, KeysAreThoseOfVllm) {
  const boost::json::object json =
      metrics_json(compute_metrics(std::vector{answered(0, 0.1, {0.1}, 2)}, 1.0, kPercents, {}), {});
  for (const char* key :
       {"duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
        "request_goodput", "output_throughput", "total_token_throughput", "max_output_tokens_per_s", "mean_ttft_ms",
        "median_tpot_ms", "std_itl_ms", "p50_ttft_ms", "p99_e2el_ms"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_TRUE(json.at("request_goodput").is_null());
}

TEST(ServeMetrics, OnlyTheMetricsAskedForAreShown) {
  const auto shown = parse_shown_metrics("ttft,e2el");
  ASSERT_TRUE(shown.ok());
  const ServeMetrics metrics = compute_metrics(std::vector{answered(0, 0.1, {0.1}, 2)}, 1.0, kPercents, {});
  EXPECT_FALSE(metrics_json(metrics, *shown).contains("mean_itl_ms"));
  const std::string table = metrics_table(metrics, *shown, {.max_concurrency = 8, .request_rate = INFINITY});
  EXPECT_THAT(table, HasSubstr("P99 TTFT (ms):"));
  EXPECT_THAT(table, Not(HasSubstr("ITL")));
  EXPECT_THAT(table, HasSubstr("Maximum request concurrency:             8"));
  EXPECT_THAT(table, Not(HasSubstr("RPS")));
  EXPECT_FALSE(parse_shown_metrics("ttft,speed").ok());
}

TEST(BaseUrl, HasAHostAPortAndAPath) {
  const auto plain = parse_base_url("http://localhost:8000");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->host, "localhost");
  EXPECT_EQ(plain->port, "8000");
  EXPECT_EQ(plain->path, "");
  EXPECT_EQ(parse_base_url("http://server/api/")->path, "/api");
  EXPECT_EQ(parse_base_url("http://server/api/")->port, "80");
  EXPECT_EQ(parse_base_url("http://[::1]:81")->host, "::1");
  EXPECT_EQ(parse_base_url("http://[::1]:81")->port, "81");
}

TEST(BaseUrl, WhatIsNoneIsRefused) {
  for (const char* url : {"", "http://", "http://:80", "http://a:", "http://a:x", "http://a:123456", "http://[::1",
                          "http://[::1]x", "https://a"}) {
    EXPECT_FALSE(parse_base_url(url).ok()) << url;
  }
}

}  // namespace
}  // namespace quire::bench
