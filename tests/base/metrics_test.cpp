#include "base/metrics.h"

#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Metrics, ACounterOfVllmsNamesIsExposedWithHelpTypeAndLabels) {
  Metrics metrics;
  Counter& counter = metrics.counter("vllm:prompt_tokens_total", "Prompt tokens processed.",
                                     {{"model_name", "smollm2"}, {"engine", "0"}});
  counter.increment();
  counter.increment(41.0);
  EXPECT_EQ(counter.value(), 42.0);
  const std::string text = metrics.text();
  EXPECT_THAT(text, HasSubstr("# HELP vllm:prompt_tokens_total Prompt tokens processed.\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE vllm:prompt_tokens_total counter\n"));
  EXPECT_THAT(text, HasSubstr("vllm:prompt_tokens_total{engine=\"0\",model_name=\"smollm2\"} 42\n"));
}

TEST(Metrics, ACounterNeverFalls) {
  Metrics metrics;
  Counter& counter = metrics.counter("quire:events_total", "Events.");
  counter.increment(2.0);
  counter.increment(-1.0);
  EXPECT_EQ(counter.value(), 2.0);
}

TEST(Metrics, AGaugeHasTheValueLastSetAndMayFall) {
  Metrics metrics;
  Gauge& gauge = metrics.gauge("vllm:num_requests_running", "Requests running.");
  gauge.set(7.0);
  gauge.increment();
  gauge.increment(-3.0);
  EXPECT_EQ(gauge.value(), 5.0);
  EXPECT_THAT(metrics.text(), HasSubstr("# TYPE vllm:num_requests_running gauge\n"));
  EXPECT_THAT(metrics.text(), HasSubstr("vllm:num_requests_running 5\n"));
}

TEST(Metrics, AHistogramCountsCumulativelyAndItsBoundsBelongToTheirBucket) {
  Metrics metrics;
  Histogram& histogram =
      metrics.histogram("vllm:time_to_first_token_seconds", "TTFT.", {0.5, 1.0, 2.5}, {{"model_name", "m"}});
  for (double seconds : {0.25, 0.5, 0.75, 4.0}) histogram.observe(seconds);
  const std::string text = metrics.text();
  const std::string name = "vllm:time_to_first_token_seconds";
  EXPECT_THAT(text, HasSubstr("# TYPE " + name + " histogram\n"));
  EXPECT_THAT(text, HasSubstr(name + "_count{model_name=\"m\"} 4\n"));
  EXPECT_THAT(text, HasSubstr(name + "_sum{model_name=\"m\"} 5.5\n"));
  EXPECT_THAT(text, HasSubstr(name + "_bucket{model_name=\"m\",le=\"0.5\"} 2\n"));
  EXPECT_THAT(text, HasSubstr(name + "_bucket{model_name=\"m\",le=\"1\"} 3\n"));
  EXPECT_THAT(text, HasSubstr(name + "_bucket{model_name=\"m\",le=\"2.5\"} 3\n"));
  EXPECT_THAT(text, HasSubstr(name + "_bucket{model_name=\"m\",le=\"+Inf\"} 4\n"));
}

TEST(Metrics, TheSameNameAndLabelsInAnyOrderGiveTheSameMetric) {
  Metrics metrics;
  Counter& one = metrics.counter("c_total", "C.", {{"a", "1"}, {"b", "2"}});
  Counter& same = metrics.counter("c_total", "C.", {{"b", "2"}, {"a", "1"}});
  Counter& other = metrics.counter("c_total", "C.", {{"a", "1"}, {"b", "3"}});
  EXPECT_EQ(&one, &same);
  EXPECT_NE(&one, &other);
  one.increment(3.0);
  other.increment(4.0);
  const std::string text = metrics.text();
  EXPECT_THAT(text, HasSubstr("c_total{a=\"1\",b=\"2\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("c_total{a=\"1\",b=\"3\"} 4\n"));
  // One family: its type is stated once.
  const size_t first = text.find("# TYPE c_total");
  EXPECT_EQ(text.find("# TYPE c_total", first + 1), std::string::npos);
}

TEST(Metrics, LabelValuesAreEscaped) {
  Metrics metrics;
  metrics.gauge("g", "G.", {{"path", "a\"b\\c\nd"}}).set(1.0);
  EXPECT_THAT(metrics.text(), HasSubstr("g{path=\"a\\\"b\\\\c\\nd\"} 1\n"));
}

TEST(Metrics, TwoRegistriesKnowNothingOfEachOther) {
  Metrics one, other;
  one.counter("only_here_total", "One.").increment();
  EXPECT_THAT(one.text(), HasSubstr("only_here_total 1\n"));
  EXPECT_THAT(other.text(), Not(HasSubstr("only_here_total")));
  EXPECT_EQ(other.text(), "");
}

TEST(Metrics, ManyThreadsMayCountAndScrapeAtOnce) {
  Metrics metrics;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&metrics] {
      for (int i = 0; i < 1000; ++i) {
        metrics.counter("shared_total", "Shared.").increment();
        metrics.histogram("h", "H.", {1.0, 2.0}).observe(1.5);
        if (i % 100 == 0) {
          EXPECT_THAT(metrics.text(), HasSubstr("shared_total"));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(metrics.counter("shared_total", "Shared.").value(), 4000.0);
  EXPECT_THAT(metrics.text(), HasSubstr("h_count 4000\n"));
}

TEST(MetricsDeath, NamesAndBucketsThatPrometheusRefusesEndTheProcess) {
  Metrics metrics;
  EXPECT_DEATH(metrics.counter("not a name", "X."), "metric name");
  EXPECT_DEATH(metrics.counter("", "X."), "metric name");
  EXPECT_DEATH(metrics.gauge("g", "X.", {{"1st", "x"}}), "label name");
  EXPECT_DEATH(metrics.gauge("g", "X.", {{"a", "x"}, {"a", "y"}}), "twice");
  EXPECT_DEATH(metrics.histogram("h", "X.", {1.0, 1.0}), "bucket");
  metrics.counter("taken", "X.");
  EXPECT_DEATH(metrics.gauge("taken", "X."), "another kind");
}

}  // namespace
}  // namespace quire
