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
    ShareCharge charge = shares.arrived(1, 1.0, 0, 1 + i % 7, 100);
    EXPECT_GE(charge.tag, last) << "equal tags are served by arrival";
    last = charge.tag;
    if (i % 3 == 0) shares.started(charge);
    if (i % 15 == 0) shares.ended(charge, i % 50);
  }
}

TEST(FairShare, ASingleRequestBesideAFloodComesBehindTheOneBeingServed) {
  FairShare shares(0);
  std::vector<double> flood;
  ShareCharge first = shares.arrived(1, 1.0, 0, 100, 50);
  flood.push_back(first.tag);
  for (int i = 1; i < 1000; ++i) flood.push_back(shares.arrived(1, 1.0, 0, 100, 50).tag);
  shares.started(first);
  const double single = shares.arrived(2, 1.0, 0, 100, 50).tag;
  EXPECT_LT(single, flood[1]);
  EXPECT_GE(single, flood[0]);
}

TEST(FairShare, WhoWasAwaySavesNothingUp) {
  FairShare shares(0);
  double tag = 0;
  for (int i = 0; i < 10; ++i) {
    ShareCharge charge = shares.arrived(1, 1.0, 0, 100, 50);
    tag = charge.tag;
    shares.started(charge);
    shares.ended(charge, 50);
  }
  EXPECT_GE(shares.arrived(2, 1.0, 0, 100, 50).tag, tag) << "no credit for the time without a request";
}

TEST(FairShare, AnAnswerShorterThanExpectedIsGivenBack) {
  FairShare shares(0);
  FairShare other(0);
  ShareCharge brief = shares.arrived(1, 1.0, 0, 100, 128);
  ShareCharge whole = other.arrived(1, 1.0, 0, 100, 128);
  shares.started(brief);
  other.started(whole);
  shares.ended(brief, 8);
  other.ended(whole, 128);
  EXPECT_DOUBLE_EQ(shares.arrived(1, 1.0, 0, 10, 10).tag, 108);
  EXPECT_DOUBLE_EQ(other.arrived(1, 1.0, 0, 10, 10).tag, 228);
}

TEST(FairShare, WhatWasExpectedIsGivenBackWhateverTheMeanHasBecome) {
  FairShare shares(0);
  std::vector<ShareCharge> charges;
  for (int i = 0; i < 64; ++i) charges.push_back(shares.arrived(1, 2.0, 0, 10, 1000));
  for (ShareCharge& charge : charges) shares.started(charge);
  double tokens = 0;
  for (size_t i = 0; i < charges.size(); ++i) {
    const int64_t output = i < 32 ? 1 : 900;
    shares.ended(charges[i], output);
    tokens += 10 + static_cast<double>(output);
  }
  EXPECT_NEAR(shares.arrived(1, 2.0, 0, 10, 10).tag, tokens / 2, 1e-6);
}

TEST(FairShare, WhatNeverStartedCostsNothing) {
  FairShare shares(0);
  std::vector<ShareCharge> flood;
  for (int i = 0; i < 100; ++i) flood.push_back(shares.arrived(1, 1.0, 0, 100, 50));
  for (const ShareCharge& charge : flood) shares.ended(charge, 0);
  EXPECT_NEAR(shares.arrived(1, 1.0, 0, 10, 10).tag, 0, 1e-9);
  EXPECT_NEAR(shares.arrived(1, 1.0, 0, 10, 1000).tag, 20, 1e-9);
  EXPECT_NEAR(shares.arrived(1, 1.0, 0, 10, 1000).tag, 20 + 10 + 128, 1e-9) << "nor does it change what is expected";
}

TEST(FairShare, GivingBackLetsNoRequestOvertakeAnEarlierOneOfItsTenant) {
  FairShare shares(0);
  const ShareCharge dropped = shares.arrived(1, 1.0, 0, 100, 50);
  const ShareCharge waiting = shares.arrived(1, 1.0, 0, 100, 50);
  shares.ended(dropped, 0);
  EXPECT_GE(shares.arrived(1, 1.0, 0, 1, 1).tag, waiting.tag);
}

TEST(FairShare, ASearchIsChargedForItsBeams) {
  FairShare shares(0);
  ShareCharge beams = shares.arrived(1, 1.0, 0, 100, 50, /*num_answers=*/4);
  EXPECT_DOUBLE_EQ(shares.arrived(1, 1.0, 0, 1, 1).tag, 100 + 4 * 50);
  shares.started(beams);
  shares.ended(beams, 4 * 10);
  EXPECT_DOUBLE_EQ(shares.arrived(1, 1.0, 0, 1, 1).start, 100 + 4 * 50) << "behind the one that waits";
}

TEST(FairShare, ALevelOfPriorityMovesARequestByItsTokensAndNoMore) {
  FairShare shares(1000);
  const double low = shares.arrived(1, 1.0, 1, 10, 10).tag;
  EXPECT_DOUBLE_EQ(low, 1000);
  double work = 0;
  int overtaken = 0;
  while (true) {
    const double high = shares.arrived(1, 1.0, 0, 90, 10).tag;
    if (high > low) break;
    work += 100;
    ++overtaken;
  }
  EXPECT_GE(overtaken, 9);
  EXPECT_LE(work, 1000 + 100);
}

TEST(FairShare, VirtualTimeIgnoresPriorities) {
  FairShare shares(1000);
  ShareCharge low = shares.arrived(1, 1.0, 5, 10, 10);
  shares.started(low);
  EXPECT_LT(shares.arrived(2, 1.0, 0, 10, 10).tag, low.tag) << "serving a low priority does not push others back";
}

// Tenants that always have requests waiting, served by rising tag.
std::map<int, double> served_tokens(const std::map<int, double>& weights, int requests, unsigned seed) {
  std::mt19937 random(seed);
  FairShare shares(0);
  struct Waiting {
    ShareCharge charge;
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
    const auto next = std::ranges::min_element(queue, {}, [](const Waiting& one) { return one.charge.tag; });
    Waiting served = *next;
    queue.erase(next);
    shares.started(served.charge);
    tokens[served.tenant] += static_cast<double>(served.prompt + served.output);
    shares.ended(served.charge, served.output);
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
