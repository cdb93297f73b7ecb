#include "bench/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "bench/arrivals.h"
#include "bench/report.h"

namespace quire::bench {
namespace {

using testing::DoubleEq;
using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

TEST(Statistics, PercentilesLieLinearlyBetweenTheNearestValues) {
  const std::vector<double> values = {40, 10, 30, 20};
  EXPECT_THAT(percentile(values, 0), DoubleEq(10));
  EXPECT_THAT(percentile(values, 50), DoubleEq(25));
  EXPECT_THAT(percentile(values, 95), DoubleNear(38.5, 1e-9));
  EXPECT_THAT(percentile(values, 100), DoubleEq(40));
}

TEST(Statistics, OfNothingEverythingIsZero) {
  EXPECT_EQ(mean({}), 0);
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(standard_deviation({}), 0);
}

TEST(Statistics, ASummaryHoldsThePercentilesAskedForInTheirOrder) {
  const std::vector<double> values = {1, 2, 3, 4, 5};
  const Summary summary = summarize(values, std::vector<double>{99, 50});
  EXPECT_THAT(summary.mean, DoubleEq(3));
  EXPECT_THAT(summary.standard_deviation, DoubleNear(std::sqrt(2.0), 1e-12));
  EXPECT_THAT(summary.percentiles, ElementsAre(Pair(99, DoubleNear(4.96, 1e-9)), Pair(50, 3)));
}

TEST(Statistics, TheMedianRunIsOneOfTheRuns) {
  EXPECT_EQ(median_index(std::vector<double>{30, 10, 20}), 2u);
  EXPECT_EQ(median_index(std::vector<double>{30, 10, 20, 40}), 2u);  // the lower of the middle two
  EXPECT_EQ(median_index(std::vector<double>{7}), 0u);
}

TEST(Arrivals, AnInfiniteRateSendsAllAtOnce) {
  std::mt19937_64 random(1);
  EXPECT_THAT(arrival_times(3, INFINITY, 1, random), ElementsAre(0, 0, 0));
}

TEST(Arrivals, TheLastRequestIsSentAtTheTimeThatTheRateSays) {
  for (const double burstiness : {0.5, 1.0, 8.0, static_cast<double>(INFINITY)}) {
    std::mt19937_64 random(2);
    const std::vector<double> times = arrival_times(200, 4, burstiness, random);
    EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
    EXPECT_THAT(times.back(), DoubleNear(50, 1e-9));
  }
}

// Deviation of the intervals over their mean: 1 for a Poisson process, 1 / sqrt(burstiness) in general.
double variation(double burstiness) {
  std::mt19937_64 random(3);
  const std::vector<double> times = arrival_times(20'000, 10, burstiness, random);
  std::vector<double> intervals = {times[0]};
  for (size_t i = 1; i < times.size(); ++i) intervals.push_back(times[i] - times[i - 1]);
  return standard_deviation(intervals) / mean(intervals);
}

TEST(Arrivals, IntervalsVaryAsTheBurstinessSays) {
  EXPECT_THAT(variation(1), DoubleNear(1, 0.05));
  EXPECT_THAT(variation(0.25), DoubleNear(2, 0.1));
  EXPECT_THAT(variation(16), DoubleNear(0.25, 0.02));
  EXPECT_THAT(variation(INFINITY), DoubleNear(0, 1e-6));
}

TEST(Arrivals, TheSameSeedGivesTheSameTimes) {
  std::mt19937_64 one(4), same(4), other(5);
  const auto times = arrival_times(50, 2, 1, one);
  EXPECT_EQ(times, arrival_times(50, 2, 1, same));
  EXPECT_NE(times, arrival_times(50, 2, 1, other));
}

TEST(Report, LinesHaveTheColumnsOfVllm) {
  EXPECT_EQ(line("Successful requests:", int64_t{12}), "Successful requests:                     12        \n");
  EXPECT_EQ(line("Benchmark duration (s):", 1.239), "Benchmark duration (s):                  1.24      \n");
  EXPECT_EQ(heading("Serving Benchmark Result", '='), "============ Serving Benchmark Result ============\n");
  EXPECT_EQ(heading("", '='), std::string(50, '=') + "\n");
}

TEST(Report, JsonIsIndentedAndHoldsNoNumberThatJsonLacks) {
  const boost::json::value value = {{"a", 1.5}, {"b", {1, 2}}, {"c", NAN}, {"d", boost::json::object()}};
  const std::string text = to_text(value);
  EXPECT_THAT(text, HasSubstr("    \"a\": 1.5,\n"));
  EXPECT_THAT(text, HasSubstr("\"c\": null"));
  EXPECT_EQ(boost::json::parse(text).at("b").as_array().size(), 2u);
}

TEST(Report, PercentsStandInNamesAsWritten) {
  EXPECT_EQ(percent_name(99), "99");
  EXPECT_EQ(percent_name(99.9), "99.9");
}

TEST(Report, AFileThatCannotBeWrittenIsAnError) {
  EXPECT_THAT(write_json("/no/such/folder/x.json", {{"a", 1}}).message(), HasSubstr("/no/such/folder/x.json"));
}

}  // namespace
}  // namespace quire::bench
