// Rules by which guesses are accepted: what comes out is distributed as without guesses, or follows the rule's formula.
#include "sampling/guess.h"

#include <cmath>
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sampling/random.h"
#include "sampling/sequence_sampler.h"

namespace quire::sampling {
namespace {

constexpr AcceptanceRule kRejection = {.method = AcceptanceMethod::kRejection};
constexpr AcceptanceRule kTypical = {.method = AcceptanceMethod::kTypical};

SequenceSampler make_sampler(const SamplingParams& params, size_t vocab_size, uint64_t seed) {
  return {std::make_shared<const SamplingParams>(params), {}, seed, static_cast<int64_t>(vocab_size), {}};
}

std::vector<float> logits_of(size_t count, unsigned seed, float spread) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// Softmax of the `kept` likeliest (0: of all).
std::vector<double> softmax(const std::vector<float>& logits, double temperature, size_t kept = 0) {
  std::vector<float> sorted = logits;
  std::ranges::sort(sorted, std::greater<>());
  const float least = kept == 0 ? sorted.back() : sorted[kept - 1];
  std::vector<double> p;
  double total = 0;
  for (const float logit : logits) {
    p.push_back(logit < least ? 0 : std::exp(static_cast<double>(logit - sorted.front()) / temperature));
    total += p.back();
  }
  for (double& one : p) one /= total;
  return p;
}

std::vector<DraftProbability> choices_of(const std::vector<double>& q) {
  std::vector<DraftProbability> choices;
  for (size_t id = 0; id < q.size(); ++id) {
    if (q[id] > 0) choices.push_back({static_cast<TokenId>(id), static_cast<float>(q[id])});
  }
  return choices;
}

TokenId draw_one(const std::vector<double>& q, double u) {
  double sum = 0;
  TokenId last = 0;
  for (size_t id = 0; id < q.size(); ++id) {
    if (q[id] <= 0) continue;
    last = static_cast<TokenId>(id);
    sum += q[id];
    if (sum > u) break;
  }
  return last;
}

// Of counts against what is expected of so many draws; tokens that cannot be must not have come.
double chi_square(const std::vector<int64_t>& counts, const std::vector<double>& p) {
  int64_t draws = 0;
  for (const int64_t count : counts) draws += count;
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double wanted = p[i] * static_cast<double>(draws);
    if (p[i] == 0) {
      EXPECT_EQ(counts[i], 0) << i;
      continue;
    }
    sum += (static_cast<double>(counts[i]) - wanted) * (static_cast<double>(counts[i]) - wanted) / wanted;
  }
  return sum;
}

// The 99.99 % point of chi-square (Wilson and Hilferty, 1931).
double bound(size_t num_cells) {
  const double k = static_cast<double>(num_cells) - 1;
  const double h = 2 / (9 * k);
  return k * std::pow(1 - h + 3.719 * std::sqrt(h), 3);
}

struct Drawn {
  std::vector<int64_t> counts;
  int64_t accepted = 0;
};

// One answer of so many tokens, all with the same logits; of each a guess that is drawn from q, or is the token.
Drawn draw_many(const SamplingParams& params, const std::vector<float>& logits, const std::vector<double>& q,
                TokenId certain, const AcceptanceRule& rule, int draws, uint64_t seed = 20261125) {
  SequenceSampler sampler = make_sampler(params, logits.size(), seed);
  SamplingScratch scratch;
  const std::vector<DraftProbability> choices = choices_of(q);
  Drawn drawn{.counts = std::vector<int64_t>(logits.size())};
  for (int i = 0; i < draws; ++i) {
    Guess guess{.token = certain, .drawn_from = {}, .rule = rule};
    if (!choices.empty()) {
      guess.token = draw_one(q, uniform(seed, static_cast<uint64_t>(i), RandomStream::kDraft));
      guess.drawn_from = choices;
    }
    std::vector<float> row = logits;
    auto sampled = sampler.sample(row, scratch, &guess);
    EXPECT_TRUE(sampled.ok()) << sampled.status().message();
    ++drawn.counts[static_cast<size_t>(sampled->id)];
    drawn.accepted += sampled->id == guess.token ? 1 : 0;
  }
  return drawn;
}

constexpr int kManyDraws = 1'000'000;

struct Case {
  const char* name;
  SamplingParams params;
  size_t top_k = 0;
};

TEST(RejectionSampling, ADrawnGuessLeavesTheDistributionAsItIs) {
  const std::vector<float> logits = logits_of(12, 1, 1.5f);
  for (const Case& one : {Case{"all", {.temperature = 1.0f}}, Case{"cold", {.temperature = 0.6f}},
                          Case{"five", {.temperature = 0.9f, .top_k = 5}, 5}}) {
    SCOPED_TRACE(one.name);
    const std::vector<double> p = softmax(logits, static_cast<double>(one.params.temperature), one.top_k);
    // Of the same kind, of another, of few tokens, and of a single one, which some answers never have.
    for (const std::vector<double>& q :
         {softmax(logits_of(12, 2, 1.0f), 1), softmax(logits, 1.3), softmax(logits_of(12, 3, 1.0f), 1, 3),
          softmax(logits_of(12, 4, 1.0f), 1, 1)}) {
      const Drawn drawn = draw_many(one.params, logits, q, 0, kRejection, kManyDraws);
      const auto cells = static_cast<size_t>(std::ranges::count_if(p, [](double x) { return x > 0; }));
      EXPECT_LT(chi_square(drawn.counts, p), bound(cells));
      // As often as can be: the mass that both have.
      double common = 0;
      for (size_t i = 0; i < p.size(); ++i) common += std::min(p[i], q[i]);
      const double deviation = std::sqrt(common * (1 - common) / kManyDraws);
      EXPECT_NEAR(static_cast<double>(drawn.accepted) / kManyDraws, common, 5 * deviation + 1e-6);
    }
  }
}

// What a certain guess comes to is what is drawn without it.
TEST(RejectionSampling, ACertainGuessIsAcceptedAsOftenAsTheModelSaysIt) {
  const std::vector<float> logits = logits_of(12, 1, 1.5f);
  const std::vector<double> p = softmax(logits, 1);
  const SamplingParams params{.temperature = 1.0f};
  std::vector<int64_t> without;
  for (const TokenId certain : {0, 3, 11}) {
    const Drawn drawn = draw_many(params, logits, {}, certain, kRejection, kManyDraws);
    EXPECT_LT(chi_square(drawn.counts, p), bound(12));
    const double chance = p[static_cast<size_t>(certain)];
    EXPECT_NEAR(static_cast<double>(drawn.accepted) / kManyDraws, chance,
                5 * std::sqrt(chance * (1 - chance) / kManyDraws));
    if (without.empty()) without = drawn.counts;
    EXPECT_EQ(drawn.counts, without);
  }
}

// Each token depends on the one before. Guesses of a refused one's successors are made again, with the same numbers.
TEST(RejectionSampling, AnswersOfSeveralTokensAreDistributedAsTheModelSays) {
  constexpr size_t kTokens = 4;
  constexpr size_t kLength = 3;
  constexpr size_t kMostGuesses = 2;
  std::vector<std::vector<float>> model;
  std::vector<std::vector<double>> q;
  for (unsigned i = 0; i <= kTokens; ++i) {  // the last: of the beginning
    model.push_back(logits_of(kTokens, 20 + i, 1.0f));
    q.push_back(softmax(logits_of(kTokens, 40 + i, 1.0f), 1));
  }
  std::vector<int64_t> counts(kTokens * kTokens * kTokens);
  std::vector<double> expected(counts.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const size_t a = i / 16, b = i / 4 % 4, c = i % 4;
    expected[i] = softmax(model[kTokens], 1)[a] * softmax(model[a], 1)[b] * softmax(model[b], 1)[c];
  }
  SamplingScratch scratch;
  const SamplingParams params{.temperature = 1.0f};
  constexpr int kAnswers = 200'000;
  for (uint64_t seed = 0; seed < kAnswers; ++seed) {
    SequenceSampler sampler = make_sampler(params, kTokens, seed);
    std::vector<size_t> answer;
    while (answer.size() < kLength) {
      std::vector<size_t> guesses;
      size_t last = answer.empty() ? kTokens : answer.back();
      std::vector<size_t> before;
      while (guesses.size() < kMostGuesses && answer.size() + guesses.size() < kLength) {
        before.push_back(last);
        last =
            static_cast<size_t>(draw_one(q[last], uniform(seed, answer.size() + guesses.size(), RandomStream::kDraft)));
        guesses.push_back(last);
      }
      for (size_t i = 0; i <= guesses.size() && answer.size() < kLength; ++i) {
        std::vector<float> row = model[answer.empty() ? kTokens : answer.back()];
        Result<SampledToken> sampled = internal_error("none");
        if (i < guesses.size()) {
          const std::vector<DraftProbability> choices = choices_of(q[before[i]]);
          const Guess guess{static_cast<TokenId>(guesses[i]), choices, kRejection};
          sampled = sampler.sample(row, scratch, &guess);
        } else {
          sampled = sampler.sample(row, scratch);
        }
        ASSERT_TRUE(sampled.ok());
        answer.push_back(static_cast<size_t>(sampled->id));
        if (i < guesses.size() && answer.back() != guesses[i]) break;
      }
    }
    ++counts[answer[0] * 16 + answer[1] * 4 + answer[2]];
  }
  EXPECT_LT(chi_square(counts, expected), bound(counts.size()));
}

TEST(RejectionSampling, PenaltiesBiasesAndBansComeBefore) {
  const std::vector<float> logits = logits_of(10, 5, 1.0f);
  SamplingParams params{.temperature = 1.0f};
  params.logit_bias = {{2, 1.5f}, {4, -1.0f}};
  params.allowed_token_ids = TokenSet({0, 2, 4, 5, 7});
  std::vector<float> edited = logits;
  edited[2] += 1.5f;
  edited[4] -= 1.0f;
  std::vector<double> p = softmax(edited, 1);
  double left = 0;
  for (size_t i = 0; i < p.size(); ++i) left += params.allowed_token_ids->contains(static_cast<TokenId>(i)) ? p[i] : 0;
  for (size_t i = 0; i < p.size(); ++i) {
    p[i] = params.allowed_token_ids->contains(static_cast<TokenId>(i)) ? p[i] / left : 0;
  }
  const Drawn drawn = draw_many(params, logits, softmax(logits, 1), 0, kRejection, kManyDraws);
  EXPECT_LT(chi_square(drawn.counts, p), bound(5));
}

TEST(Guesses, RepeatWithTheSeed) {
  const std::vector<float> logits = logits_of(12, 1, 1.5f);
  const std::vector<double> q = softmax(logits_of(12, 2, 1.0f), 1);
  for (const AcceptanceRule& rule : {kRejection, kTypical}) {
    const SamplingParams params{.temperature = 1.0f};
    EXPECT_EQ(draw_many(params, logits, q, 0, rule, 100, 7).counts,
              draw_many(params, logits, q, 0, rule, 100, 7).counts);
    EXPECT_NE(draw_many(params, logits, q, 0, rule, 100, 7).counts,
              draw_many(params, logits, q, 0, rule, 100, 8).counts);
  }
}

TEST(Guesses, OfGreedyAnswersChangeNothing) {
  const std::vector<float> logits = logits_of(12, 1, 1.5f);
  const auto best = static_cast<size_t>(std::ranges::max_element(logits) - logits.begin());
  for (const AcceptanceRule& rule : {kRejection, kTypical}) {
    for (TokenId certain = 0; certain < 12; ++certain) {
      EXPECT_EQ(draw_many({.temperature = 0}, logits, {}, certain, rule, 3).counts[best], 3);
    }
    EXPECT_EQ(draw_many({.temperature = 0}, logits, softmax(logits, 2), 0, rule, 100).counts[best], 100);
  }
}

TEST(Guesses, OutsideTheVocabularyAreNeverTaken) {
  const std::vector<float> logits = logits_of(12, 1, 1.5f);
  for (const AcceptanceRule& rule : {kRejection, kTypical}) {
    for (const int32_t top_k : {0, 4}) {
      for (const TokenId certain : {-5, 12, 1'000'000}) {
        const Drawn drawn = draw_many({.temperature = 1.0f, .top_k = top_k}, logits, {}, certain, rule, 100);
        EXPECT_EQ(drawn.accepted, 0);
      }
      SequenceSampler sampler = make_sampler({.temperature = 1.0f, .top_k = top_k}, 12, 1);
      SamplingScratch scratch;
      const std::vector<DraftProbability> choices = {{-1, 0.5f}, {90, 0.5f}};
      const Guess guess{90, choices, rule};
      std::vector<float> row = logits;
      EXPECT_LT(sampler.sample(row, scratch, &guess)->id, 12);
    }
  }
}

TEST(Guesses, LogprobsAreThoseOfTheModel) {
  const std::vector<float> logits = logits_of(12, 1, 1.5f);
  const std::vector<double> p = softmax(logits, 1);
  for (const AcceptanceRule& rule : {kRejection, kTypical}) {
    SequenceSampler sampler = make_sampler({.temperature = 0.7f, .logprobs = 2}, 12, 1);
    SamplingScratch scratch;
    const std::vector<DraftProbability> choices = choices_of(softmax(logits, 2));
    for (int i = 0; i < 50; ++i) {
      std::vector<float> row = logits;
      const Guess guess{static_cast<TokenId>(i % 12), choices, rule};
      auto sampled = sampler.sample(row, scratch, &guess);
      ASSERT_TRUE(sampled.ok());
      EXPECT_EQ(sampled->logprobs->chosen.id, sampled->id);
      EXPECT_NEAR(static_cast<double>(sampled->logprobs->chosen.logprob), std::log(p[static_cast<size_t>(sampled->id)]),
                  1e-4);
    }
  }
}

// p > min(threshold, alpha * exp(-H)), H = -sum p log p, of what the model's filters leave; else what is drawn without.
TEST(TypicalAcceptance, FollowsItsFormula) {
  int taken = 0;
  int refused = 0;
  for (const float spread : {0.1f, 1.0f, 3.0f}) {
    const std::vector<float> logits = logits_of(12, 9, spread);
    for (const auto& [threshold, alpha] : {std::pair(0.09, 0.3), {0.3, 0.9}, {0.01, 0.05}, {0.9, 1.0}}) {
      for (const int32_t top_k : {0, 4}) {
        const SamplingParams params{.temperature = 0.8f, .top_k = top_k};
        const AcceptanceRule rule{AcceptanceMethod::kTypical, threshold, alpha};
        const std::vector<double> p =
            softmax(logits, static_cast<double>(params.temperature), static_cast<size_t>(top_k));
        double entropy = 0;
        for (const double one : p) entropy -= one > 0 ? one * std::log(one) : 0;
        for (TokenId certain = 0; certain < 12; ++certain) {
          const double chance = p[static_cast<size_t>(certain)];
          const bool typical = chance > std::min(threshold, alpha * std::exp(-entropy));
          const Drawn drawn = draw_many(params, logits, {}, certain, rule, 20);
          if (typical) {
            EXPECT_EQ(drawn.accepted, 20);
          } else {
            EXPECT_EQ(drawn.counts, draw_many(params, logits, {}, kNoToken, {}, 20).counts);
          }
          (typical ? taken : refused) += 1;
        }
      }
    }
  }
  EXPECT_GT(taken, 20);
  EXPECT_GT(refused, 20);
}

TEST(Weights, EntropyIsThatOfTheDistribution) {
  SamplingScratch scratch;
  scratch.candidates = {{2.0f, 5}, {1.0f, 1}, {1.0f, 3}};
  const Weights few{.row = {}, .total = 4};
  EXPECT_NEAR(entropy_of(few, scratch), 1.5 * std::log(2.0), 1e-12);
  std::vector<float> row = {0, 1, 0, 1, 0, 2};
  EXPECT_NEAR(entropy_of({.row = row, .total = 4}, scratch), 1.5 * std::log(2.0), 1e-12);
  EXPECT_EQ(probability_of(5, few, scratch), 0.5);
  EXPECT_EQ(probability_of(4, few, scratch), 0);
  std::vector<float> sure = {0, 3};
  EXPECT_EQ(entropy_of({.row = sure, .total = 3}, scratch), 0);
}

TEST(Weights, AResidualOfNothingLeavesThemAsTheyAre) {
  SamplingScratch scratch;
  std::vector<float> row = {0.25f, 0.5f, 0.25f};
  Weights weights{.row = row, .total = 1};
  const std::vector<DraftProbability> same = {{0, 0.25f}, {1, 0.5f}, {2, 0.25f}};
  keep_residual(same, weights, scratch);
  EXPECT_THAT(row, testing::ElementsAre(0.25f, 0.5f, 0.25f));
  EXPECT_EQ(weights.total, 1);
  scratch.candidates = {{0.5f, 1}, {0.25f, 0}, {0.25f, 2}};
  Weights few{.row = {}, .total = 1};
  keep_residual(same, few, scratch);
  EXPECT_EQ(scratch.candidates.size(), 3u);
  EXPECT_EQ(scratch.candidates.front().value, 0.5f);
  const std::vector<DraftProbability> one = {{1, 1.0f}};
  keep_residual(one, few, scratch);
  EXPECT_EQ(few.total, 0.5);
  EXPECT_EQ(scratch.candidates.front().value, 0.0f);
}

}  // namespace
}  // namespace quire::sampling
