// Every method against tests/sampling/oracle.h, over random logits and parameters.
#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sampling/random.h"
#include "sampling/sequence_sampler.h"
#include "tests/sampling/oracle.h"

namespace quire::sampling {
namespace {

constexpr uint64_t kSeed = 20240817;

// A request in the middle of its answer.
struct Scene {
  SamplingParams params;
  std::vector<TokenId> prompt;
  std::vector<TokenId> output;
  std::vector<TokenId> stop_ids;
  size_t vocab_size = 0;
  oracle::Breakers breakers;

  SequenceSampler sampler() const {
    SamplingParams with_breakers = params;
    with_breakers.dry_breakers = std::make_shared<const DryBreakers>(breakers);
    return {std::make_shared<const SamplingParams>(with_breakers),
            prompt,
            kSeed,
            static_cast<int64_t>(vocab_size),
            stop_ids,
            output};
  }
};

class Dice {
 public:
  explicit Dice(unsigned seed) : random_(seed) {}
  bool one_in(int n) { return std::uniform_int_distribution<int>(1, n)(random_) == 1; }
  int whole(int lowest, int highest) { return std::uniform_int_distribution<int>(lowest, highest)(random_); }
  float real(float lowest, float highest) { return std::uniform_real_distribution<float>(lowest, highest)(random_); }
  std::vector<TokenId> tokens(int count, size_t vocab_size) {
    std::vector<TokenId> tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(whole(0, static_cast<int>(vocab_size) - 1));
    return tokens;
  }
  std::mt19937& generator() { return random_; }

 private:
  std::mt19937 random_;
};

Scene random_scene(Dice& dice) {
  Scene scene;
  constexpr int kSizes[] = {1, 2, 7, 63, 64, 65, 500, 1500};
  scene.vocab_size = static_cast<size_t>(kSizes[dice.whole(0, 7)]);
  SamplingParams& p = scene.params;
  const int letters = std::min(static_cast<int>(scene.vocab_size), 4);  // few, so that runs come up again
  scene.prompt = dice.tokens(dice.whole(0, 30), static_cast<size_t>(letters));
  scene.output = dice.tokens(dice.whole(0, 30), static_cast<size_t>(letters));
  if (dice.one_in(3)) scene.stop_ids = dice.tokens(1, scene.vocab_size);
  p.max_tokens = std::nullopt;
  p.min_tokens = scene.vocab_size > 2 ? dice.whole(0, 40) : 0;
  p.temperature = dice.one_in(6) ? 0.0f : dice.real(0.2f, 2.0f);
  if (dice.one_in(3)) p.top_p = dice.real(0.05f, 0.999f);
  if (dice.one_in(3)) p.top_k = dice.whole(1, static_cast<int>(scene.vocab_size) + 3);
  if (dice.one_in(3)) p.min_p = dice.real(0.0f, 0.5f);
  if (dice.one_in(3)) p.typical_p = dice.real(0.05f, 0.999f);
  if (dice.one_in(3)) p.top_n_sigma = dice.real(0.3f, 4.0f);
  if (dice.one_in(3)) p.dynatemp_range = dice.real(0.1f, 2.0f);
  p.dynatemp_exponent = dice.real(0.3f, 3.0f);
  if (dice.one_in(3)) p.xtc_probability = dice.one_in(3) ? 1.0f : dice.real(0.0f, 1.0f);
  p.xtc_threshold = dice.one_in(8) ? 0.0f : dice.real(0.01f, 0.6f);
  if (dice.one_in(3)) p.presence_penalty = dice.real(-2.0f, 2.0f);
  if (dice.one_in(3)) p.frequency_penalty = dice.real(-2.0f, 2.0f);
  if (dice.one_in(3)) p.repetition_penalty = dice.real(0.5f, 2.0f);
  if (dice.one_in(3)) p.logit_bias = {{dice.whole(0, static_cast<int>(scene.vocab_size) - 1), dice.real(-9.0f, 9.0f)}};
  if (scene.vocab_size > 60 && dice.one_in(4)) p.allowed_token_ids = dice.tokens(40, scene.vocab_size);
  if (scene.vocab_size > 60) {
    for (int i = dice.whole(0, 5); i > 0; --i) p.bad_words_ids.push_back(dice.tokens(dice.whole(1, 3), 4));
  }
  if (dice.one_in(2)) p.dry_multiplier = dice.real(0.1f, 2.0f);
  p.dry_base = dice.real(1.0f, 2.0f);
  p.dry_allowed_length = dice.whole(0, 4);
  p.dry_penalty_last_n = dice.one_in(2) ? -1 : dice.whole(0, 50);
  for (int i = dice.whole(0, 2); i > 0; --i) {
    scene.breakers.push_back(dice.tokens(dice.whole(1, 4), static_cast<size_t>(letters)));
  }
  return scene;
}

TEST(SamplingOracle, AnyMixtureOfMethodsDrawsWhatThePlainAccountDraws) {
  const unsigned seed = 4711;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Dice dice(seed);
  SamplingScratch scratch;
  int compared = 0;
  for (int round = 0; round < 6000; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    const Scene scene = random_scene(dice);
    const SamplingParams& p = scene.params;
    const std::vector<float> logits = oracle::random_logits(dice.generator(), scene.vocab_size, 2.5f);
    const std::vector<double> processed =
        oracle::processed(p, scene.prompt, scene.output, scene.stop_ids, oracle::widened(logits), scene.breakers);
    std::vector<float> row = logits;
    SequenceSampler sampler = scene.sampler();
    const Result<SampledToken> sampled = sampler.sample(row, scratch);
    if (oracle::sorted(processed).empty()) {
      EXPECT_EQ(sampled.status().code(), StatusCode::kInvalidArgument);
      continue;
    }
    ASSERT_TRUE(sampled.ok()) << sampled.status().message();

    const auto index = static_cast<uint64_t>(scene.output.size());
    const bool xtc = p.xtc_probability > 0 && p.xtc_threshold <= 0.5f &&
                     uniform(kSeed, index, RandomStream::kExcludeTopChoices) < static_cast<double>(p.xtc_probability);
    const bool by_id = p.top_k == 0 || static_cast<size_t>(p.top_k) >= scene.vocab_size;
    const oracle::Tokens expected = oracle::distribution(p, processed, xtc);
    const std::optional<TokenId> token = oracle::draw(expected, by_id, uniform(kSeed, index));
    if (!token) continue;
    ++compared;
    ASSERT_EQ(sampled->id, *token) << scene.vocab_size << " tokens, " << expected.size() << " left";
  }
  EXPECT_GT(compared, 5000);
}

TEST(SamplingOracle, MirostatKeepsItsBoundThroughAnAnswerAsThePlainAccountDoes) {
  for (const int version : {1, 2}) {
    const unsigned seed = 31 + static_cast<unsigned>(version);
    SCOPED_TRACE(testing::Message() << "version " << version << ", seed " << seed);
    Dice dice(seed);
    Scene scene;
    scene.vocab_size = 3000;
    scene.params.mirostat = version;
    scene.params.mirostat_tau = 3.5f;
    scene.params.mirostat_eta = 0.3f;
    scene.params.temperature = 0.9f;
    scene.params.top_k = 1;  // ignored beside Mirostat, like all the filters
    scene.params.top_p = 0.01f;
    scene.params.min_p = 0.9f;
    scene.params.typical_p = 0.1f;
    scene.params.top_n_sigma = 0.1f;
    scene.params.xtc_probability = 1.0f;
    scene.params.dynatemp_range = 0.5f;
    SequenceSampler sampler = scene.sampler();
    SamplingScratch scratch;
    double mu = 7.0;
    ASSERT_DOUBLE_EQ(sampler.mirostat_mu(), mu);
    int compared = 0;
    for (uint64_t i = 0; i < 300; ++i) {
      const std::vector<float> logits = oracle::random_logits(dice.generator(), scene.vocab_size, 2.0f);
      std::vector<float> row = logits;
      const Result<SampledToken> sampled = sampler.sample(row, scratch);
      ASSERT_TRUE(sampled.ok());
      const oracle::Tokens kept = oracle::mirostat(scene.params, oracle::widened(logits), mu);
      const std::optional<TokenId> token = oracle::draw(kept, true, uniform(kSeed, i));
      if (token) {
        ASSERT_EQ(sampled->id, *token) << i;
        ++compared;
      }
      mu = oracle::mirostat_next_mu(scene.params, kept, sampled->id, mu);
      ASSERT_NEAR(sampler.mirostat_mu(), mu, 1e-3) << i;
      mu = sampler.mirostat_mu();
    }
    EXPECT_GT(compared, 280);
  }
}

TEST(SamplingOracle, BeamCandidatesAreTheBestOfTheProcessedLogSoftmax) {
  const unsigned seed = 2718;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Dice dice(seed);
  SamplingScratch scratch;
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    Scene scene = random_scene(dice);
    scene.params.dry_multiplier = 0.0f;
    const std::vector<float> logits = oracle::random_logits(dice.generator(), scene.vocab_size, 2.5f);
    oracle::Tokens logprobs = oracle::softmax(oracle::sorted(oracle::widened(logits)));
    std::vector<double> scores(scene.vocab_size);
    for (const oracle::Token& token : logprobs) scores[static_cast<size_t>(token.id)] = std::log(token.value);
    const oracle::Tokens expected = oracle::sorted(
        oracle::processed(scene.params, scene.prompt, scene.output, scene.stop_ids, scores, scene.breakers));
    const SequenceSampler sampler = scene.sampler();
    std::vector<float> row = logits;
    const size_t count = static_cast<size_t>(dice.whole(1, 16));
    const auto candidates = sampler.beam_candidates(row, count, scratch);
    if (expected.empty()) {
      EXPECT_EQ(candidates.status().code(), StatusCode::kInvalidArgument);
      continue;
    }
    ASSERT_TRUE(candidates.ok()) << candidates.status().message();
    ASSERT_EQ(candidates->size(), std::min(count, expected.size()));
    for (size_t i = 0; i < candidates->size(); ++i) {
      const TokenLogprob& found = (*candidates)[i];
      EXPECT_NEAR(found.logprob, expected[i].value, 1e-4);
      EXPECT_EQ(found.rank, static_cast<int32_t>(i) + 1);
      const bool close_pair = (i + 1 < expected.size() && expected[i].value - expected[i + 1].value < 1e-5) ||
                              (i > 0 && expected[i - 1].value - expected[i].value < 1e-5);
      if (!close_pair) {
        EXPECT_EQ(found.id, expected[i].id);
      }
    }
  }
}

// ---- going on in the middle of an answer ----

TEST(MidAnswer, ASamplerMadeFromTheTokensSoFarGoesOnAsTheOneThatSampledThem) {
  const unsigned seed = 1234;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Dice dice(seed);
  SamplingScratch scratch;
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    Scene scene = random_scene(dice);
    scene.output.clear();
    if (dice.one_in(3)) scene.params.mirostat = dice.whole(1, 2);
    std::vector<std::vector<float>> rows;
    for (int i = 0; i < 40; ++i) {
      rows.push_back(oracle::random_logits(dice.generator(), scene.vocab_size, 2.0f));
    }
    SequenceSampler whole = scene.sampler();
    const int moved_after = dice.whole(0, 39);
    std::vector<TokenId> tokens;
    std::optional<SequenceSampler> moved;
    std::optional<SequenceSampler> copy;
    for (int i = 0; i < 40; ++i) {
      if (i == moved_after) {
        Scene middle = scene;
        middle.output = tokens;
        moved = middle.sampler();
        moved->set_mirostat_mu(whole.mirostat_mu());
        copy = whole;
        EXPECT_EQ(moved->num_sampled(), i);
      }
      std::vector<float> row = rows[static_cast<size_t>(i)];
      const Result<SampledToken> sampled = whole.sample(row, scratch);
      if (!sampled.ok()) break;  // everything is banned
      tokens.push_back(sampled->id);
      for (std::optional<SequenceSampler>* other : {&moved, &copy}) {
        if (!*other) continue;
        row = rows[static_cast<size_t>(i)];
        const Result<SampledToken> again = (*other)->sample(row, scratch);
        ASSERT_TRUE(again.ok());
        ASSERT_EQ(again->id, sampled->id) << "token " << i << ", moved after " << moved_after;
        ASSERT_EQ((*other)->mirostat_mu(), whole.mirostat_mu());
      }
    }
  }
}

TEST(MidAnswer, AcceptedTokensCountAsSampledOnes) {
  SamplingParams params;
  params.temperature = 0.0f;
  params.frequency_penalty = 1.0f;
  params.bad_words_ids = {{0, 0, 1}};
  params.min_tokens = 2;
  Scene scene{params, {}, {}, {2}, 3};
  SequenceSampler sampler = scene.sampler();
  SamplingScratch scratch;
  const std::vector<float> logits = {1.0f, 2.0f, 3.0f};
  std::vector<float> row = logits;
  sampler.accept(0);
  EXPECT_EQ(sampler.beam_candidates(row, 3, scratch)->front().id, 1);  // 2 waits for min_tokens
  sampler.accept(0);
  row = logits;
  EXPECT_EQ(sampler.beam_candidates(row, 3, scratch)->size(), 2u);  // 1 would complete 0 0 1
  row = logits;
  EXPECT_EQ(sampler.sample(row, scratch)->id, 2);
  EXPECT_EQ(sampler.num_sampled(), 3);
}

// ---- statistics ----

TEST(Statistics, DrawsFollowTheFilteredDistribution) {
  constexpr int kDraws = 40000;
  constexpr size_t kTokens = 24;
  const unsigned seed = 99;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Dice dice(seed);
  const std::vector<float> logits = oracle::random_logits(dice.generator(), kTokens, 1.5f);
  std::vector<SamplingParams> all(5);
  all[0].typical_p = 0.8f;
  all[1].top_n_sigma = 1.5f;
  all[2].dynatemp_range = 0.7f;
  all[3].top_k = 12;
  all[3].typical_p = 0.7f;
  all[4].xtc_probability = 1.0f;
  all[4].xtc_threshold = 0.08f;
  for (size_t which = 0; which < all.size(); ++which) {
    SCOPED_TRACE(testing::Message() << "case " << which);
    const SamplingParams& p = all[which];
    const Scene scene{p, {}, {}, {}, kTokens};
    SequenceSampler sampler = scene.sampler();
    SamplingScratch scratch;
    std::vector<double> counts(kTokens, 0.0);
    for (int i = 0; i < kDraws; ++i) {
      std::vector<float> row = logits;
      ++counts[static_cast<size_t>(sampler.sample(row, scratch)->id)];
    }
    const oracle::Tokens expected = oracle::distribution(p, oracle::widened(logits), p.xtc_probability > 0);
    double chi_square = 0.0;
    double seen = 0.0;
    for (const oracle::Token& token : expected) {
      const double wanted = token.value * kDraws;
      const double found = counts[static_cast<size_t>(token.id)];
      chi_square += (found - wanted) * (found - wanted) / wanted;
      seen += found;
    }
    EXPECT_EQ(seen, kDraws) << "a filtered token was drawn";
    // Mean plus five standard deviations of the chi-square distribution.
    const auto freedom = static_cast<double>(expected.size() - 1);
    EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * freedom));
  }
}

TEST(Statistics, XtcStrikesAsOftenAsItsProbabilityAndWhateverIsDrawn) {
  // Two tokens above the threshold: the first one cannot be drawn where xtc strikes.
  SamplingParams params;
  params.xtc_probability = 0.3f;
  params.xtc_threshold = 0.2f;
  const Scene scene{params, {}, {}, {}, 3};
  SequenceSampler sampler = scene.sampler();
  SamplingScratch scratch;
  constexpr int kDraws = 50000;
  int first = 0;
  for (int i = 0; i < kDraws; ++i) {
    std::vector<float> row = {std::log(0.6f), std::log(0.3f), std::log(0.1f)};
    first += sampler.sample(row, scratch)->id == 0 ? 1 : 0;
  }
  const double expected = 0.7 * 0.6;
  const double deviation = std::sqrt(expected * (1 - expected) / kDraws);
  EXPECT_NEAR(static_cast<double>(first) / kDraws, expected, 5 * deviation);
}

TEST(Statistics, MirostatHoldsTheMeanSurpriseAtTau) {
  for (const int version : {1, 2}) {
    for (const float tau : {2.0f, 4.0f}) {
      SCOPED_TRACE(testing::Message() << "version " << version << ", tau " << tau);
      Dice dice(7);
      SamplingParams params;
      params.mirostat = version;
      params.mirostat_tau = tau;
      const Scene scene{params, {}, {}, {}, 2000};
      SequenceSampler sampler = scene.sampler();
      SamplingScratch scratch;
      constexpr int kTokens = 2000;
      const double mu_before = sampler.mirostat_mu();
      for (int i = 0; i < kTokens; ++i) {
        std::vector<float> row = oracle::random_logits(dice.generator(), 2000, 3.0f);
        ASSERT_TRUE(sampler.sample(row, scratch).ok());
      }
      // The bound moves by eta * (tau - surprise) a token: so the mean surprise can be read from it.
      const double mean_surprise = static_cast<double>(tau) + (mu_before - sampler.mirostat_mu()) / (0.1 * kTokens);
      EXPECT_NEAR(mean_surprise, static_cast<double>(tau), 0.1);
      EXPECT_GT(sampler.mirostat_mu(), 0.0);
      EXPECT_LT(sampler.mirostat_mu(), 20.0);
    }
  }
}

}  // namespace
}  // namespace quire::sampling
