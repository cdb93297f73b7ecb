// Tokens that are drawn where the logits lie (ops/choose_tokens.h) beside those that the sampler draws.
#include <gtest/gtest.h>

#include <random>

#include "ops/choose_tokens.h"
#include "sampling/sequence_sampler.h"

namespace quire::sampling {
namespace {

constexpr int64_t kVocabSize = 700;

SequenceSampler make_sampler(const SamplingParams& params, uint64_t seed = 0) {
  return {std::make_shared<const SamplingParams>(params), std::vector<TokenId>{1, 2, 3}, seed, kVocabSize, {5}};
}

int32_t choose(const PlainChoice& choice, const std::vector<float>& logits) {
  return ops::choose_token(logits.data(), kVocabSize,
                           {.inverse_temperature = choice.temperature > 0 ? 1 / choice.temperature : 0,
                            .min_p = choice.min_p,
                            .top_k = choice.top_k,
                            .top_p = choice.top_p,
                            .u = choice.u});
}

TEST(PlainChoice, DrawsTheTokensThatTheSamplerDraws) {
  std::mt19937_64 engine(11);
  std::normal_distribution<float> normal(0, 3);
  const SamplingParams kParams[] = {{.temperature = 0},
                                    {.temperature = 1},
                                    {.temperature = 0.7f, .top_p = 0.9f},
                                    {.temperature = 1.3f, .min_p = 0.05f},
                                    {.temperature = 0.6f, .top_p = 0.5f, .min_p = 0.01f},
                                    {.temperature = 1, .top_k = kVocabSize}};
  for (const SamplingParams& params : kParams) {
    SequenceSampler sampler = make_sampler(params, 77);
    SequenceSampler other = make_sampler(params, 77);
    SamplingScratch scratch;
    for (int step = 0; step < 200; ++step) {
      std::vector<float> logits(kVocabSize);
      for (float& logit : logits) logit = normal(engine);
      const std::optional<PlainChoice> choice = other.plain_choice();
      ASSERT_TRUE(choice.has_value());
      const auto taken = other.take(choose(*choice, logits));
      const auto sampled = sampler.sample(logits, scratch);
      ASSERT_TRUE(taken.ok() && sampled.ok());
      EXPECT_EQ(taken->id, sampled->id) << "step " << step;
      EXPECT_FALSE(taken->logprobs.has_value());
    }
    EXPECT_EQ(other.num_sampled(), 200);
  }
}

// Of the k largest the sampler draws by falling weight, the other by rising id: as often, not the same.
TEST(PlainChoice, KeepsWhatTheSamplerKeepsOfTheLargest) {
  std::mt19937_64 engine(12);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> logits(kVocabSize);
  for (float& logit : logits) logit = normal(engine);
  const SamplingParams params{.temperature = 0.8f, .top_p = 0.8f, .top_k = 6};
  SequenceSampler sampler = make_sampler(params, 5);
  SequenceSampler other = make_sampler(params, 6);
  SamplingScratch scratch;
  constexpr int kDraws = 20000;
  std::vector<int> counts(kVocabSize);
  std::vector<int> other_counts(kVocabSize);
  for (int i = 0; i < kDraws; ++i) {
    std::vector<float> row = logits;
    ++counts[static_cast<size_t>(sampler.sample(row, scratch)->id)];
    ++other_counts[static_cast<size_t>(other.take(choose(*other.plain_choice(), logits))->id)];
  }
  for (size_t id = 0; id < counts.size(); ++id) {
    EXPECT_EQ(counts[id] > 0, other_counts[id] > 0) << id;
    EXPECT_NEAR(counts[id], other_counts[id], 5 * std::sqrt(2 * counts[id] + 1)) << id;
  }
}

TEST(PlainChoice, IsNotWhatChangesLogitsOrLooksAtThem) {
  EXPECT_TRUE(make_sampler({}).plain_choice().has_value());
  std::vector<SamplingParams> others;
  const auto add = [&](auto set) { set(others.emplace_back()); };
  add([](SamplingParams& p) { p.logprobs = 0; });
  add([](SamplingParams& p) { p.repetition_penalty = 1.1f; });
  add([](SamplingParams& p) { p.frequency_penalty = 0.1f; });
  add([](SamplingParams& p) { p.presence_penalty = 0.1f; });
  add([](SamplingParams& p) { p.logit_bias = {{3, 1.0f}}; });
  add([](SamplingParams& p) { p.allowed_token_ids = std::vector<TokenId>{1, 2}; });
  add([](SamplingParams& p) { p.bad_words_ids = {{4}}; });
  add([](SamplingParams& p) { p.typical_p = 0.9f; });
  add([](SamplingParams& p) { p.top_n_sigma = 1; });
  add([](SamplingParams& p) { p.dynatemp_range = 0.1f; });
  add([](SamplingParams& p) { p.mirostat = 2; });
  add([](SamplingParams& p) { p.dry_multiplier = 1; });
  add([](SamplingParams& p) {
    p.xtc_probability = 0.5f;
    p.xtc_threshold = 0.1f;
  });
  for (size_t i = 0; i < others.size(); ++i) EXPECT_FALSE(make_sampler(others[i]).plain_choice().has_value()) << i;

  // Until the stop ids may come.
  SequenceSampler sampler = make_sampler({.min_tokens = 1});
  EXPECT_FALSE(sampler.plain_choice().has_value());
  sampler.accept(7);
  EXPECT_TRUE(sampler.plain_choice().has_value());
  EXPECT_FALSE(sampler.take(-1).ok());
}

}  // namespace
}  // namespace quire::sampling
