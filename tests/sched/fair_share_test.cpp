#include "sched/fair_share.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace quire::sched {
namespace {

TEST(FairShare, WithOneTenantTagsRiseInTheOrderOfArrival) {
  FairShare shares(0);
  double last = -1;
  for (int i = 0; i < 100; ++i) {
    const double tag = shares.arrived(1, 1.0, 0, 1 + i % 7, 100);
    EXPECT_GT(tag, last);
    last = tag;
    if (i % 3 == 0) shares.started(tag, 0);
    if (i % 5 == 0) shares.finished(1, 1.0, 100, i % 50);
  }
}

TEST(FairShare, ASingleRequestBesideAFloodComesBehindTheOneBeingServed) {
  FairShare shares(0);
  std::vector<double> flood;
  for (int i = 0; i < 1000; ++i) flood.push_back(shares.arrived(1, 1.0, 0, 100, 50));
  shares.started(flood[0], 0);
  const double single = shares.arrived(2, 1.0, 0, 100, 50);
  EXPECT_LT(single, flood[1]);
  EXPECT_GE(single, flood[0]);
}

TEST(FairShare, WhoWasAwaySavesNothingUp) {
  FairShare shares(0);
  double tag = 0;
  for (int i = 0; i < 10; ++i) {
    tag = shares.arrived(1, 1.0, 0, 100, 50);
    shares.started(tag, 0);
    shares.finished(1, 1.0, 50, 50);
  }
  EXPECT_GE(shares.arrived(2, 1.0, 0, 100, 50), tag) << "no credit for the time without a request";
}

TEST(FairShare, AnAnswerShorterThanExpectedIsGivenBack) {
  FairShare shares(0);
  FairShare other(0);
  shares.arrived(1, 1.0, 0, 100, 128);
  other.arrived(1, 1.0, 0, 100, 128);
  shares.finished(1, 1.0, 128, 8);
  other.finished(1, 1.0, 128, 128);
  EXPECT_LT(shares.arrived(1, 1.0, 0, 10, 10), other.arrived(1, 1.0, 0, 10, 10));
}

TEST(FairShare, ALevelOfPriorityMovesARequestByItsTokensAndNoMore) {
  FairShare shares(1000);
  const double low = shares.arrived(1, 1.0, 1, 10, 10);
  EXPECT_DOUBLE_EQ(low, 1000);
  double work = 0;
  int overtaken = 0;
  while (true) {
    const double high = shares.arrived(1, 1.0, 0, 90, 10);
    if (high > low) break;
    work += 100;
    ++overtaken;
  }
  EXPECT_GE(overtaken, 9);
  EXPECT_LE(work, 1000 + 100);
}

TEST(FairShare, VirtualTimeIgnoresPriorities) {
  FairShare shares(1000);
  const double low = shares.arrived(1, 1.0, 5, 10, 10);
  shares.started(low, 5);
  EXPECT_LT(shares.arrived(2, 1.0, 0, 10, 10), low) << "serving a low priority does not push others back";
}

// Tenants that always have requests waiting, served by rising tag.
std::map<int, double> served_tokens(const std::map<int, double>& weights, int requests, unsigned seed) {
  std::mt19937 random(seed);
  FairShare shares(0);
  struct Waiting {
    double tag;
    int tenant;
    int64_t prompt;
    int64_t output;
  };
  std::vector<Waiting> queue;
  const auto arrive = [&](int tenant) {
    const auto prompt = static_cast<int64_t>(
        1 + random() % (tenant == 1 ? 400 : 100));  // unlike, so that counting requests would not do
    const auto output = static_cast<int64_t>(1 + random() % 200);
    queue.push_back({shares.arrived(tenant, weights.at(tenant), 0, prompt, 400), tenant, prompt, output});
  };
  for (const auto& [tenant, weight] : weights) {
    for (int i = 0; i < 20; ++i) arrive(tenant);
  }
  std::map<int, double> tokens;
  for (int i = 0; i < requests; ++i) {
    const auto next = std::ranges::min_element(queue, {}, &Waiting::tag);
    const Waiting served = *next;
    queue.erase(next);
    shares.started(served.tag, 0);
    tokens[served.tenant] += static_cast<double>(served.prompt + served.output);
    shares.finished(served.tenant, weights.at(served.tenant), 400, served.output);
    arrive(served.tenant);
  }
  return tokens;
}

TEST(FairShare, OverALongRunTokensAreSharedByWeight) {
  const unsigned seed = 3;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const std::map<int, double> weights = {{1, 1.0}, {2, 3.0}, {3, 0.5}};
  const std::map<int, double> tokens = served_tokens(weights, 20000, seed);
  double all = 0;
  for (const auto& [tenant, count] : tokens) all += count;
  for (const auto& [tenant, weight] : weights) {
    EXPECT_NEAR(tokens.at(tenant) / all, weight / 4.5, 0.03 * weight / 4.5) << "tenant " << tenant;
  }
}

}  // namespace
}  // namespace quire::sched
