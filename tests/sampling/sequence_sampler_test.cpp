#include "sampling/sequence_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::sampling {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

SequenceSampler make_sampler(const SamplingParams& params, size_t vocab_size, std::vector<TokenId> prompt = {},
                             uint64_t seed = 0, std::vector<TokenId> stop_ids = {}) {
  return {std::make_shared<const SamplingParams>(params), prompt, seed, static_cast<int64_t>(vocab_size),
          std::move(stop_ids)};
}

// The next token; the row stays as it is for the next call.
TokenId next(SequenceSampler& sampler, std::vector<float> logits) {
  SamplingScratch scratch;
  Result<SampledToken> result = sampler.sample(logits, scratch);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? result->id : kNoToken;
}

// How often each token is drawn in `draws` draws.
std::map<TokenId, int> histogram(const SamplingParams& params, const std::vector<float>& logits, int draws,
                                 uint64_t seed = 1) {
  SequenceSampler sampler = make_sampler(params, logits.size(), {}, seed);
  SamplingScratch scratch;
  std::map<TokenId, int> counts;
  for (int i = 0; i < draws; ++i) {
    std::vector<float> row = logits;
    Result<SampledToken> result = sampler.sample(row, scratch);
    EXPECT_TRUE(result.ok());
    ++counts[result->id];
  }
  return counts;
}

std::vector<TokenId> tokens_of(const std::map<TokenId, int>& counts) {
  std::vector<TokenId> tokens;
  for (const auto& [token, count] : counts) tokens.push_back(token);
  return tokens;
}

std::vector<float> logs(std::vector<double> probabilities) {
  std::vector<float> logits;
  for (double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0.0f;
  return params;
}

// ---- greedy ----

TEST(Greedy, TakesTheLargestLogitAndTheLowestIdAmongEquals) {
  SequenceSampler sampler = make_sampler(greedy(), 5);
  EXPECT_EQ(next(sampler, {0.0f, 2.0f, 1.0f, 2.0f, -1.0f}), 1);
  EXPECT_EQ(next(sampler, {-kInf, -kInf, -9.0f, -kInf, -kInf}), 2);
  EXPECT_EQ(next(sampler, {3.0f, 3.0f, 3.0f, 3.0f, 3.0f}), 0);
  EXPECT_EQ(sampler.num_sampled(), 3);
}

TEST(Greedy, IgnoresTheFiltersOfRandomChoice) {
  SamplingParams params = greedy();
  params.top_k = 1;
  params.top_p = 0.1f;
  params.min_p = 1.0f;
  SequenceSampler sampler = make_sampler(params, 3);
  EXPECT_EQ(next(sampler, {0.0f, 1.0f, 2.0f}), 2);
}

TEST(Greedy, FindsTheLargestAnywhereInALongRow) {
  SequenceSampler sampler = make_sampler(greedy(), 1000);
  for (size_t place = 0; place < 1000; ++place) {
    std::vector<float> logits(1000, -1.0f);
    logits[place] = 1.0f;
    ASSERT_EQ(next(sampler, logits), static_cast<TokenId>(place));
  }
}

// ---- bans, bias, penalties ----

TEST(MinTokens, BansTheStopIdsUntilThereAreEnough) {
  SamplingParams params = greedy();
  params.min_tokens = 2;
  SequenceSampler sampler = make_sampler(params, 4, {}, 0, {3, 2, 99, -1});
  const std::vector<float> logits = {0.0f, 1.0f, 5.0f, 9.0f};
  EXPECT_EQ(next(sampler, logits), 1);
  EXPECT_EQ(next(sampler, logits), 1);
  EXPECT_EQ(next(sampler, logits), 3);
}

TEST(MinTokens, ABiasDoesNotLiftTheBan) {
  SamplingParams params = greedy();
  params.min_tokens = 1;
  params.logit_bias = {{1, 100.0f}};
  SequenceSampler sampler = make_sampler(params, 2, {}, 0, {1});
  EXPECT_EQ(next(sampler, {0.0f, 0.0f}), 0);
  EXPECT_EQ(next(sampler, {0.0f, 0.0f}), 1);
}

TEST(LogitBias, IsAddedClampedAndAccumulated) {
  SamplingParams params = greedy();
  params.logit_bias = {{0, 2.0f}, {1, 1.5f}, {1, 1.5f}, {7, 100.0f}, {-1, 100.0f}};
  SequenceSampler sampler = make_sampler(params, 3);
  EXPECT_EQ(next(sampler, {0.0f, 0.0f, 2.5f}), 1);
  params.logit_bias = {{0, 1000.0f}};
  SequenceSampler clamped = make_sampler(params, 2);
  EXPECT_EQ(next(clamped, {0.0f, 101.0f}), 1);
  EXPECT_EQ(next(clamped, {0.0f, 99.0f}), 0);
}

TEST(LogitBias, OfMinusHundredNearlyForbidsAToken) {
  SamplingParams params;
  params.logit_bias = {{0, -100.0f}};
  EXPECT_THAT(tokens_of(histogram(params, {5.0f, 0.0f, 0.0f}, 2000)), ElementsAre(1, 2));
}

TEST(Penalties, RepetitionWeakensTokensOfThePromptAndOfTheOutput) {
  SamplingParams params = greedy();
  params.repetition_penalty = 2.0f;
  SequenceSampler sampler = make_sampler(params, 4, {0, 0, 77, -5});
  EXPECT_EQ(next(sampler, {3.0f, 1.6f, 0.0f, 0.0f}), 1);      // 1.5 1.6 0 0
  EXPECT_EQ(next(sampler, {3.0f, 1.6f, 0.0f, 0.0f}), 0);      // 1.5 0.8 0 0
  EXPECT_EQ(next(sampler, {-1.0f, -1.5f, -2.5f, -2.2f}), 0);  // -2 -3 -2.5 -2.2
  EXPECT_EQ(next(sampler, {-1.2f, -1.5f, -2.5f, -2.2f}), 3);  // -2.4 -3 -2.5 -2.2
}

TEST(Penalties, OfNextToNothingAreNoFault) {
  SamplingParams params;
  params.repetition_penalty = 1e-38f;
  SequenceSampler sampler = make_sampler(params, 3, {1});
  EXPECT_EQ(next(sampler, {5.0f, 20.0f, 1.0f}), 1);
}

TEST(Penalties, FrequencyGrowsWithTheCountAndLeavesThePromptAlone) {
  SamplingParams params = greedy();
  params.frequency_penalty = 1.0f;
  SequenceSampler sampler = make_sampler(params, 2, {0, 0, 0, 0});
  const std::vector<float> logits = {2.5f, 0.0f};
  EXPECT_EQ(next(sampler, logits), 0);
  EXPECT_EQ(next(sampler, logits), 0);
  EXPECT_EQ(next(sampler, logits), 0);
  EXPECT_EQ(next(sampler, logits), 1);  // 2.5 - 3
}

TEST(Penalties, PresenceCountsOnce) {
  SamplingParams params = greedy();
  params.presence_penalty = 1.0f;
  SequenceSampler sampler = make_sampler(params, 2);
  const std::vector<float> logits = {1.5f, 0.0f};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(next(sampler, logits), 0);
  EXPECT_EQ(next(sampler, {0.9f, 0.0f}), 1);
}

TEST(Penalties, ComeAfterTheBias) {
  SamplingParams params = greedy();
  params.logit_bias = {{0, -3.0f}};
  params.repetition_penalty = 2.0f;
  // (4 - 3) / 2 = 0.5; the other way round it would be 4 / 2 - 3 = -1.
  SequenceSampler sampler = make_sampler(params, 2, {0});
  EXPECT_EQ(next(sampler, {4.0f, 0.0f}), 0);
  SequenceSampler another = make_sampler(params, 2, {0});
  EXPECT_EQ(next(another, {4.0f, 0.6f}), 1);
}

// Steps 4 to 7 in the plainest way.
TokenId naive_greedy(const SamplingParams& params, const std::vector<TokenId>& prompt,
                     const std::vector<TokenId>& output, std::vector<float> logits) {
  for (const auto& [id, bias] : params.logit_bias) logits[static_cast<size_t>(id)] += bias;
  for (size_t token = 0; token < logits.size(); ++token) {
    const auto id = static_cast<TokenId>(token);
    const auto count = std::count(output.begin(), output.end(), id);
    const bool in_prompt = std::find(prompt.begin(), prompt.end(), id) != prompt.end();
    float& logit = logits[token];
    if (in_prompt || count > 0) {
      logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    }
    logit -= params.frequency_penalty * static_cast<float>(count);
    if (count > 0) logit -= params.presence_penalty;
  }
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

TEST(Penalties, AllTogetherAgreeWithANaiveAccountOverLongAnswers) {
  const unsigned seed = 99;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::uniform_real_distribution<float> penalty(-2.0f, 2.0f);
  for (int round = 0; round < 20; ++round) {
    SamplingParams params = greedy();
    if (round % 2 == 0) params.repetition_penalty = 0.5f + static_cast<float>(round) * 0.1f;
    if (round % 3 != 0) params.frequency_penalty = penalty(random);
    if (round % 5 != 0) params.presence_penalty = penalty(random);
    params.logit_bias = {{3, 1.0f}, {40, -2.0f}};
    std::vector<TokenId> prompt(30), output;
    for (TokenId& id : prompt) id = static_cast<TokenId>(random() % 50);
    SequenceSampler sampler = make_sampler(params, 50, prompt);
    for (int i = 0; i < 100; ++i) {
      std::vector<float> logits(50);
      for (float& x : logits) x = normal(random);
      const TokenId expected = naive_greedy(params, prompt, output, logits);
      ASSERT_EQ(next(sampler, logits), expected) << "round " << round << " token " << i;
      output.push_back(expected);
    }
  }
}

// ---- filters of random choice ----

TEST(TopK, KeepsTheKMostLikelyAndThoseEqualToTheLast) {
  SamplingParams params;
  params.top_k = 2;
  EXPECT_THAT(tokens_of(histogram(params, {1.0f, 3.0f, 2.0f, 0.0f}, 500)), ElementsAre(1, 2));
  EXPECT_THAT(tokens_of(histogram(params, {2.0f, 3.0f, 2.0f, 2.0f, 1.0f}, 2000)), ElementsAre(0, 1, 2, 3));
  params.top_k = 1;
  EXPECT_THAT(tokens_of(histogram(params, {1.0f, 3.0f, 2.0f, 0.0f}, 500)), ElementsAre(1));
}

TEST(TopK, OfZeroMinusOneOrTheWholeVocabularyIsOff) {
  for (int k : {0, -1, 4, 100}) {
    SamplingParams params;
    params.top_k = k;
    EXPECT_EQ(histogram(params, {0.0f, 0.0f, 0.0f, 0.0f}, 1000).size(), 4u) << k;
  }
}

TEST(TopP, KeepsTheSmallestSetThatReachesTheMass) {
  const std::vector<float> logits = logs({0.1, 0.5, 0.15, 0.25});
  SamplingParams params;
  params.top_p = 0.74f;
  EXPECT_THAT(tokens_of(histogram(params, logits, 2000)), ElementsAre(1, 3));
  params.top_p = 0.76f;
  EXPECT_THAT(tokens_of(histogram(params, logits, 2000)), ElementsAre(1, 2, 3));
  params.top_p = 0.49f;
  EXPECT_THAT(tokens_of(histogram(params, logits, 2000)), ElementsAre(1));
  params.top_p = 1e-6f;
  EXPECT_THAT(tokens_of(histogram(params, logits, 200)), ElementsAre(1));
  params.top_p = 0.95f;
  EXPECT_THAT(tokens_of(histogram(params, logits, 2000)), ElementsAre(0, 1, 2, 3));
}

TEST(TopP, AmongEqualsTheLowestIdsAreKept) {
  SamplingParams params;
  params.top_p = 0.45f;
  const std::vector<float> logits(10, 1.0f);
  EXPECT_THAT(tokens_of(histogram(params, logits, 2000)), ElementsAre(0, 1, 2, 3, 4));
}

TEST(TopP, IsTakenOfWhatTopKLeft) {
  // Of the first two, renormalised to 5/8 and 3/8, 0.6 needs only the first.
  SamplingParams params;
  params.top_k = 2;
  params.top_p = 0.6f;
  EXPECT_THAT(tokens_of(histogram(params, logs({0.5, 0.3, 0.2}), 1000)), ElementsAre(0));
  params.top_k = 0;
  EXPECT_THAT(tokens_of(histogram(params, logs({0.5, 0.3, 0.2}), 1000)), ElementsAre(0, 1));
}

TEST(MinP, DropsTokensLessLikelyThanAShareOfTheMostLikely) {
  SamplingParams params;
  params.min_p = 0.39f;
  EXPECT_THAT(tokens_of(histogram(params, logs({0.5, 0.2, 0.19, 0.11}), 3000)), ElementsAre(0, 1));
  params.min_p = 1.0f;
  EXPECT_THAT(tokens_of(histogram(params, {1.0f, 1.0f, 0.9f}, 1000)), ElementsAre(0, 1));
}

TEST(MinP, ComesAfterTheTemperatureAndBeforeTopP) {
  SamplingParams params;
  params.min_p = 0.3f;
  params.temperature = 2.0f;  // 0.16 / 0.64 = 0.25 becomes 0.5
  EXPECT_THAT(tokens_of(histogram(params, logs({0.64, 0.16, 0.0225}), 1000)), ElementsAre(0, 1));
  params.temperature = 1.0f;
  EXPECT_THAT(tokens_of(histogram(params, logs({0.64, 0.16, 0.0225}), 1000)), ElementsAre(0));
  // min_p leaves 0.4 and 0.3; of these top_p 0.55 needs only the first (0.4 / 0.7).
  params.min_p = 0.6f;
  params.top_p = 0.55f;
  EXPECT_THAT(tokens_of(histogram(params, logs({0.4, 0.3, 0.2, 0.1}), 1000)), ElementsAre(0));
  params.top_k = 3;
  EXPECT_THAT(tokens_of(histogram(params, logs({0.4, 0.3, 0.2, 0.1}), 1000)), ElementsAre(0));
}

// ---- the distribution ----

// Chi-square of `draws` draws against softmax(logits / temperature) restricted to `allowed`.
double chi_square(const SamplingParams& params, const std::vector<float>& logits, const std::set<TokenId>& allowed,
                  int draws) {
  std::map<TokenId, double> expected;
  double total = 0.0;
  for (TokenId id : allowed) {
    total += expected[id] =
        std::exp(static_cast<double>(logits[static_cast<size_t>(id)]) / static_cast<double>(params.temperature));
  }
  const std::map<TokenId, int> counts = histogram(params, logits, draws, 4711);
  for (const auto& [id, count] : counts) EXPECT_TRUE(allowed.count(id)) << id;
  double statistic = 0.0;
  for (const auto& [id, weight] : expected) {
    const double wanted = weight / total * draws;
    const double found = counts.count(id) ? counts.at(id) : 0;
    statistic += (found - wanted) * (found - wanted) / wanted;
  }
  return statistic;
}

std::set<TokenId> first_ids(TokenId count) {
  std::set<TokenId> ids;
  for (TokenId id = 0; id < count; ++id) ids.insert(id);
  return ids;
}

// Falling logits, so that the k most likely are the first k ids. Bounds: 99.99% of the chi-square distribution.
struct Distribution : testing::Test {
  Distribution() {
    for (int i = 0; i < 20; ++i) logits.push_back(1.0f - 0.1f * static_cast<float>(i));
  }
  std::vector<float> logits;
  SamplingParams params;
};

TEST_F(Distribution, OfTemperatureOneIsTheSoftmax) {
  EXPECT_LT(chi_square(params, logits, first_ids(20), 50000), 50.8);
}

TEST_F(Distribution, FollowsTheTemperature) {
  params.temperature = 0.5f;
  EXPECT_LT(chi_square(params, logits, first_ids(20), 50000), 50.8);
  params.temperature = 2.0f;
  EXPECT_LT(chi_square(params, logits, first_ids(20), 50000), 50.8);
}

TEST_F(Distribution, UnderTopKIsTheSoftmaxOfTheKept) {
  params.top_k = 5;
  EXPECT_LT(chi_square(params, logits, first_ids(5), 50000), 23.6);
}

TEST_F(Distribution, UnderTopPIsTheSoftmaxOfTheKept) {
  double total = 0.0, mass = 0.0;
  for (float x : logits) total += std::exp(static_cast<double>(x));
  for (size_t i = 0; i < 6; ++i) mass += std::exp(static_cast<double>(logits[i]));
  params.top_p = static_cast<float>(mass / total - 0.01);
  EXPECT_LT(chi_square(params, logits, first_ids(6), 50000), 25.8);
  params.top_k = 19;  // the other way through the code; nearly the same nucleus
  total -= std::exp(static_cast<double>(logits[19]));
  params.top_p = static_cast<float>(mass / total - 0.01);
  EXPECT_LT(chi_square(params, logits, first_ids(6), 50000), 25.8);
}

TEST_F(Distribution, OverALargeVocabularyReachesEveryBlock) {
  // 40 likely tokens spread over 2,000 (several blocks), all else impossible but for a hair.
  std::vector<float> row(2000, -60.0f);
  std::set<TokenId> likely;
  for (int i = 0; i < 40; ++i) {
    const auto id = static_cast<TokenId>(i * 49 + 3);
    row[static_cast<size_t>(id)] = 0.05f * static_cast<float>(i % 7);
    likely.insert(id);
  }
  EXPECT_LT(chi_square(params, row, likely, 20000), 81.0);
  params.top_p = 0.9999f;
  EXPECT_LT(chi_square(params, row, likely, 20000), 81.0);
}

// Steps 8 to 10 by full sort, in double: the set of tokens that may be drawn.
std::set<TokenId> naive_support(const SamplingParams& params, const std::vector<float>& logits) {
  std::vector<std::pair<double, TokenId>> tokens;
  const double maximum = *std::max_element(logits.begin(), logits.end());
  for (size_t i = 0; i < logits.size(); ++i) {
    const double weight = std::exp((logits[i] - maximum) / static_cast<double>(params.temperature));
    if (weight >= static_cast<double>(params.min_p)) {
      tokens.push_back({-weight, static_cast<TokenId>(i)});
    }
  }
  std::sort(tokens.begin(), tokens.end());
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < tokens.size()) {
    size_t kept = static_cast<size_t>(params.top_k);
    while (kept < tokens.size() && tokens[kept].first == tokens[kept - 1].first) ++kept;
    tokens.resize(kept);
  }
  double total = 0.0, mass = 0.0;
  for (const auto& [negative, id] : tokens) total -= negative;
  std::set<TokenId> support;
  for (const auto& [negative, id] : tokens) {
    if (!support.empty() && params.top_p < 1.0f && mass >= static_cast<double>(params.top_p) * total) {
      break;
    }
    mass -= negative;
    support.insert(id);
  }
  return support;
}

TEST(Filters, AllTogetherAgreeWithAFullSort) {
  const unsigned seed = 2718;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.5f);
  std::uniform_real_distribution<float> share(0.05f, 0.98f);
  SamplingScratch scratch;
  for (int round = 0; round < 400; ++round) {
    SamplingParams params;
    params.temperature = 0.3f + share(random);
    if (round % 2 == 0) params.top_k = 1 + static_cast<int>(random() % 30);
    if (round % 3 != 0) params.top_p = share(random);
    if (round % 5 == 0) params.min_p = share(random) * 0.3f;
    std::vector<float> logits(200);
    for (float& x : logits) x = normal(random);
    const std::set<TokenId> support = naive_support(params, logits);
    SequenceSampler sampler = make_sampler(params, logits.size(), {}, random());
    std::set<TokenId> drawn;
    for (int i = 0; i < 300; ++i) {
      std::vector<float> row = logits;
      Result<SampledToken> result = sampler.sample(row, scratch);
      ASSERT_TRUE(result.ok());
      ASSERT_TRUE(support.count(result->id)) << "round " << round << " token " << result->id;
      drawn.insert(result->id);
    }
    if (support.size() <= 4) {
      // Few enough that 300 draws show nearly all of them.
      EXPECT_GE(drawn.size() + 1, support.size()) << "round " << round;
    }
  }
}

// ---- reproducibility ----

std::vector<TokenId> answer(const SamplingParams& params, uint64_t seed, int length, SamplingScratch& scratch) {
  SequenceSampler sampler = make_sampler(params, 500, {1, 2, 3}, seed);
  std::vector<TokenId> tokens;
  for (int i = 0; i < length; ++i) {
    std::vector<float> logits(500);
    for (size_t j = 0; j < logits.size(); ++j) {
      logits[j] = static_cast<float>((j * 37 + static_cast<size_t>(i) * 11) % 101) * 0.05f;
    }
    tokens.push_back(sampler.sample(logits, scratch)->id);
  }
  return tokens;
}

TEST(Seed, TheSameSeedGivesTheSameAnswerAndAnotherSeedAnother) {
  SamplingScratch scratch, other_scratch;
  SamplingParams params;
  params.frequency_penalty = 0.5f;
  for (int k : {0, 40}) {
    params.top_k = k;
    params.top_p = k == 0 ? 1.0f : 0.9f;
    const std::vector<TokenId> first = answer(params, 42, 50, scratch);
    EXPECT_EQ(answer(params, 42, 50, other_scratch), first);
    EXPECT_NE(answer(params, 43, 50, scratch), first);
  }
}

TEST(Seed, ADrawDoesNotDependOnWhatOtherSequencesDrawInBetween) {
  SamplingScratch scratch;
  const SamplingParams params;
  const std::vector<TokenId> alone = answer(params, 7, 30, scratch);
  SequenceSampler a = make_sampler(params, 500, {1, 2, 3}, 7);
  SequenceSampler b = make_sampler(params, 500, {4}, 8);
  for (int i = 0; i < 30; ++i) {
    std::vector<float> logits(500);
    for (size_t j = 0; j < logits.size(); ++j) {
      logits[j] = static_cast<float>((j * 37 + static_cast<size_t>(i) * 11) % 101) * 0.05f;
    }
    std::vector<float> copy = logits;
    EXPECT_TRUE(b.sample(copy, scratch).ok());
    EXPECT_EQ(a.sample(logits, scratch)->id, alone[static_cast<size_t>(i)]);
  }
}

// ---- logprobs ----

TEST(Logprobs, AreThoseOfTheRawLogitsWhateverTheFilters) {
  const std::vector<float> logits = logs({0.1, 0.2, 0.3, 0.4});
  for (int way = 0; way < 4; ++way) {
    SamplingParams params;
    params.logprobs = 2;
    params.logit_bias = {{0, 100.0f}};
    params.repetition_penalty = 1.7f;
    params.temperature = way == 0 ? 0.0f : 0.4f;
    if (way == 2) params.top_k = 2;
    if (way == 3) params.top_p = 0.5f;
    SequenceSampler sampler = make_sampler(params, 4, {3});
    std::vector<float> row = logits;
    SamplingScratch scratch;
    const Result<SampledToken> result = sampler.sample(row, scratch);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->id, 0);
    ASSERT_TRUE(result->logprobs);
    EXPECT_EQ(result->logprobs->chosen.id, 0);
    EXPECT_NEAR(result->logprobs->chosen.logprob, std::log(0.1), 1e-6);
    EXPECT_EQ(result->logprobs->chosen.rank, 4);
    ASSERT_EQ(result->logprobs->top.size(), 2u);
    EXPECT_EQ(result->logprobs->top[0].id, 3);
    EXPECT_EQ(result->logprobs->top[1].id, 2);
    EXPECT_NEAR(result->logprobs->top[1].logprob, std::log(0.3), 1e-6);
  }
}

TEST(Logprobs, OfZeroBringTheChosenTokenOnlyAndAreAbsentWhenNotAskedFor) {
  SamplingParams params = greedy();
  SamplingScratch scratch;
  std::vector<float> row = {0.0f, 1.0f};
  SequenceSampler without = make_sampler(params, 2);
  EXPECT_FALSE(without.sample(row, scratch)->logprobs);
  params.logprobs = 0;
  SequenceSampler with = make_sampler(params, 2);
  const Result<SampledToken> result = with.sample(row, scratch);
  ASSERT_TRUE(result->logprobs);
  EXPECT_THAT(result->logprobs->top, IsEmpty());
  EXPECT_EQ(result->logprobs->chosen.rank, 1);
}

// ---- faults ----

TEST(Faults, ARowThatIsNoDistributionIsAnErrorAndLeavesTheSamplerAsItWas) {
  for (bool is_greedy : {true, false}) {
    for (const std::vector<float>& bad :
         {std::vector<float>{0.0f, kNaN, 1.0f}, {0.0f, kInf, 1.0f}, {-kInf, -kInf, -kInf}}) {
      SamplingParams params;
      if (is_greedy) params.temperature = 0.0f;
      params.repetition_penalty = 1.5f;
      SequenceSampler sampler = make_sampler(params, 3);
      std::vector<float> row = bad;
      SamplingScratch scratch;
      EXPECT_EQ(sampler.sample(row, scratch).status().code(), StatusCode::kInternal);
      EXPECT_EQ(sampler.num_sampled(), 0);
      EXPECT_EQ(next(sampler, {-kInf, 5.0f, -kInf}), 1);
    }
  }
}

TEST(Faults, WhenEveryTokenIsBannedThereIsNothingToChoose) {
  SamplingParams params;
  params.min_tokens = 1;
  SequenceSampler sampler = make_sampler(params, 2, {}, 0, {0, 1});
  std::vector<float> row = {0.0f, 0.0f};
  SamplingScratch scratch;
  EXPECT_EQ(sampler.sample(row, scratch).status().code(), StatusCode::kInvalidArgument);
}

TEST(Faults, ExtremeButFiniteLogitsAreFine) {
  SamplingParams params;
  params.temperature = 0.01f;
  constexpr float kMax = std::numeric_limits<float>::max();
  EXPECT_THAT(tokens_of(histogram(params, {-kMax, kMax, -kMax}, 100)), ElementsAre(1));
  params.top_k = 2;
  EXPECT_THAT(tokens_of(histogram(params, {-kMax, kMax, -kMax}, 100)), ElementsAre(1));
  params.top_k = 0;
  params.top_p = 0.5f;
  EXPECT_THAT(tokens_of(histogram(params, {-kMax, kMax, -kMax}, 100)), ElementsAre(1));
}

TEST(Faults, AVocabularyOfOneTokenIsChosenWhateverIsAsked) {
  SamplingParams params;
  params.top_k = 1;
  params.top_p = 0.01f;
  params.min_p = 1.0f;
  EXPECT_THAT(tokens_of(histogram(params, {-3.0f}, 10)), ElementsAre(0));
}

}  // namespace
}  // namespace quire::sampling
