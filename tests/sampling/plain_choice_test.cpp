// Tokens that are drawn where the logits lie (ops/edit_logits.h, ops/choose_tokens.h, ops/top_logprobs.h) beside those
// that the sampler draws.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ops/choose_tokens.h"
#include "ops/top_logprobs.h"
#include "sampling/sequence_sampler.h"
#include "tests/sampling/constrained_params.h"
#include "tests/sampling/edited_row.h"

namespace quire::sampling {
namespace {

constexpr int64_t kVocabSize = 700;

SequenceSampler make_sampler(const ConstrainedParams& params, uint64_t seed = 0) {
  return {std::make_shared<const SamplingParams>(params),
          std::vector<TokenId>{1, 2, 3},
          seed,
          kVocabSize,
          {5},
          {},
          params.constraint};
}
SequenceSampler make_sampler(const SamplingParams& params, uint64_t seed = 0) {
  return make_sampler(ConstrainedParams(params), seed);
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
      const int32_t drawn = choose(*choice, logits);
      const auto taken = other.take(drawn, scratch);
      const auto sampled = sampler.sample(logits, scratch);
      ASSERT_TRUE(taken.ok() && *taken && sampled.ok());
      EXPECT_EQ(drawn, sampled->id) << "step " << step;
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
    const int32_t drawn = choose(*other.plain_choice(), logits);
    ASSERT_TRUE(*other.take(drawn, scratch));
    ++other_counts[static_cast<size_t>(drawn)];
  }
  for (size_t id = 0; id < counts.size(); ++id) {
    EXPECT_EQ(counts[id] > 0, other_counts[id] > 0) << id;
    EXPECT_NEAR(counts[id], other_counts[id], 5 * std::sqrt(2 * counts[id] + 1)) << id;
  }
}

// Allows tokens of a third of the vocabulary, others at each step, and refuses some of them; every fifth time it allows
// all, and every ninth nothing but the end.
class Thirds final : public TokenConstraint {
 public:
  std::unique_ptr<State> start() const override { return std::make_unique<Third>(); }
  Status check(std::string_view) const override { return {}; }
  bool whole_only() const override { return false; }

 private:
  struct Third final : State {
    std::unique_ptr<State> clone() const override { return std::make_unique<Third>(*this); }
    bool allowed(std::span<uint32_t> mask) override {
      std::ranges::fill(mask, 0U);
      if (had % 9 == 8) mask[0] = 1U << 5;
      for (TokenId id = 0; had % 9 != 8 && id < kVocabSize; ++id) {
        if ((id + had) % 3 == 0) mask[static_cast<size_t>(id) / 32] |= 1U << (id % 32);
      }
      return had % 5 != 4;
    }
    bool accept(TokenId token) override {
      if (token % 7 == 3) return false;
      ++had;
      return true;
    }
    int had = 0;
  };
};

ConstrainedParams any_params(std::mt19937_64& engine) {
  const auto one_in = [&](uint64_t n) { return engine() % n == 0; };
  const auto token = [&] { return static_cast<TokenId>(engine() % (kVocabSize + 20)); };
  ConstrainedParams p;
  p.temperature = one_in(2) ? 0.0f : 0.8f;
  if (one_in(3)) p.top_p = 0.8f;
  if (one_in(3)) p.repetition_penalty = one_in(4) ? 1e-39f : 1.7f;
  if (one_in(3)) p.frequency_penalty = one_in(2) ? 0.37f : -0.2f;
  if (one_in(3)) p.presence_penalty = one_in(2) ? 0.71f : -0.6f;
  if (one_in(2)) p.logprobs = static_cast<int32_t>(engine() % 4);
  if (one_in(3)) p.min_tokens = static_cast<int32_t>(engine() % 20);
  for (uint64_t n = one_in(2) ? engine() % 40 : 0; n > 0; --n) {
    p.logit_bias.emplace_back(token(), 0.1f * static_cast<float>(static_cast<int>(engine() % 99) - 50));
    if (one_in(9)) p.logit_bias.push_back(p.logit_bias.back());
  }
  if (one_in(4)) {
    std::vector<TokenId> allowed;
    for (int n = 0; n < 400; ++n) allowed.push_back(token());
    p.allowed_token_ids = allowed;
  }
  for (uint64_t n = one_in(3) ? engine() % 90 : 0; n > 0; --n) {
    p.bad_words_ids.push_back({token()});
    if (one_in(2)) p.bad_words_ids.back().insert(p.bad_words_ids.back().begin(), token());
  }
  if (one_in(3)) p.constraint = std::make_shared<Thirds>();
  return p;
}

void expect_same(const PositionLogprobs& expected, const ops::RankedToken* ranks) {
  const auto same = [](const TokenLogprob& one, const ops::RankedToken& other) {
    EXPECT_EQ(one.id, other.token);
    EXPECT_EQ(one.rank, other.rank);
    EXPECT_NEAR(one.logprob, other.logprob, 1e-5);
  };
  same(expected.chosen, ranks[0]);
  for (size_t i = 0; i < expected.top.size(); ++i) same(expected.top[i], ranks[1 + i]);
}

TEST(PlainChoice, EditsAndScoresAsTheSamplerDoes) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal(0, 3);
  int num_refused = 0;
  for (int request = 0; request < 150; ++request) {
    const ConstrainedParams params = any_params(engine);
    SequenceSampler sampler = make_sampler(params, seed);
    SequenceSampler other = make_sampler(params, seed);
    SamplingScratch scratch;
    EditedRow edit(other);
    TokenId last = kNoToken;
    for (int step = 0; step < 25; ++step) {
      std::vector<float> logits(kVocabSize);
      // Some are equal, so that ties count.
      for (float& logit : logits) logit = engine() % 4 == 0 ? std::round(normal(engine)) : normal(engine);
      std::vector<ops::LogitEdit> edits;
      std::vector<uint32_t> masks(3, 77);  // of another row
      if (other.wants_mask()) other.make_mask();
      const bool masked = other.add_edits(0, edits, masks, scratch);
      ASSERT_EQ(masks.size(), 3 + (masked ? (kVocabSize + 31) / 32 : 0u));
      EXPECT_TRUE(other.edits_logits() || (edits.empty() && !masked && !other.has_list()));
      const std::vector<float> edited = edit(logits, edits, masked, masks, last);
      const int32_t drawn = choose(*other.plain_choice(), edited);
      std::vector<ops::RankedToken> ranks(1 + static_cast<size_t>(params.logprobs.value_or(0)));
      ops::top_logprobs(logits.data(), kVocabSize, params.logprobs.value_or(0), drawn, ranks.data());

      const Result<bool> taken = other.take(drawn, scratch);
      std::vector<float> row = logits;
      const Result<SampledToken> sampled = sampler.sample(row, scratch);
      ASSERT_EQ(taken.ok(), sampled.ok()) << "request " << request << " step " << step;
      if (!taken.ok()) {
        EXPECT_EQ(taken.status().message(), sampled.status().message());
        break;
      }
      last = sampled->id;
      if (!*taken) {
        ++num_refused;
        EXPECT_EQ(other.sample(logits, scratch)->id, sampled->id) << "request " << request << " step " << step;
        continue;
      }
      ASSERT_EQ(drawn, sampled->id) << "request " << request << " step " << step;
      if (sampled->logprobs) expect_same(*sampled->logprobs, ranks.data());
    }
  }
  EXPECT_GT(num_refused, 0);
}

TEST(PlainChoice, MoreBiasesThanAListHoldsAreEditsOfEachStep) {
  SamplingParams params{.repetition_penalty = 1.5f, .min_tokens = 9};
  params.stop_token_ids = std::vector<TokenId>{7};
  const auto sampler_of = [&](TokenId count) {
    params.logit_bias.clear();
    for (TokenId id = 0; id < count; ++id) params.logit_bias.emplace_back(id, 3.0f);
    return SequenceSampler(std::make_shared<const SamplingParams>(params), std::vector<TokenId>{1, 2}, 1, 5000, {5});
  };
  for (const TokenId count : {ops::kMostListedBiases, ops::kMostListedBiases + 1}) {
    SequenceSampler sampler = sampler_of(count);
    SamplingScratch scratch;
    std::vector<ops::LogitEdit> edits;
    std::vector<uint32_t> masks;
    ASSERT_FALSE(sampler.add_edits(0, edits, masks, scratch));
    EXPECT_EQ(edits.size(), count > ops::kMostListedBiases ? static_cast<size_t>(count) : 2u);
    std::vector<ops::ListedToken> list;
    sampler.make_list(list);
    EXPECT_LE(list.size(), sampler.most_listed());
    EXPECT_EQ(list.size(), 1 + 2 + (count > ops::kMostListedBiases ? 0u : static_cast<size_t>(count)));
    const std::vector<float> logits(5000, 1.0f);
    const std::vector<float> edited = EditedRow(sampler)(logits, edits, false, masks);
    EXPECT_EQ(edited[0], 4.0f);
    EXPECT_EQ(edited[1], 4.0f / 1.5f);
    for (const size_t banned : {size_t{5}, size_t{7}}) EXPECT_EQ(edited[banned], ops::kBanned);
    EXPECT_EQ(edited[4999], 1.0f);
  }
}

TEST(PlainChoice, IsNotForFiltersThatOnlyTheSamplerHas) {
  EXPECT_TRUE(make_sampler(SamplingParams()).plain_choice().has_value());
  std::vector<SamplingParams> others;
  const auto add = [&](auto set) { set(others.emplace_back()); };
  add([](SamplingParams& p) { p.typical_p = 0.9f; });
  add([](SamplingParams& p) { p.top_n_sigma = 1; });
  add([](SamplingParams& p) { p.dynatemp_range = 0.1f; });
  add([](SamplingParams& p) { p.mirostat = 2; });
  add([](SamplingParams& p) { p.dry_multiplier = 1; });
  add([](SamplingParams& p) {
    p.xtc_probability = 0.5f;
    p.xtc_threshold = 0.1f;
  });
  for (size_t i = 0; i < others.size(); ++i) {
    EXPECT_FALSE(make_sampler(others[i]).draws_plainly()) << i;
    EXPECT_FALSE(make_sampler(others[i]).plain_choice().has_value()) << i;
  }
}

TEST(PlainChoice, SaysWhichEditsHaveToSeeTheTokenBefore) {
  EXPECT_FALSE(make_sampler({.logprobs = 0}).edits_logits());
  std::vector<ConstrainedParams> before;
  std::vector<SamplingParams> any_time;
  before.emplace_back(SamplingParams{.bad_words_ids = {{4}, {4, 5}}});
  before.emplace_back(SamplingParams(), std::make_shared<Thirds>());
  // The device counts the tokens that it draws.
  any_time.push_back({.repetition_penalty = 1.1f});
  any_time.push_back({.frequency_penalty = 0.1f});
  any_time.push_back({.presence_penalty = 0.1f});
  any_time.push_back({.logit_bias = {{3, 1.0f}}});
  any_time.push_back({.allowed_token_ids = std::vector<TokenId>{1, 2}});
  any_time.push_back({.bad_words_ids = {{4}}});
  any_time.push_back({.min_tokens = 1});
  for (const ConstrainedParams& params : before) {
    EXPECT_TRUE(make_sampler(params).edits_logits());
    EXPECT_TRUE(make_sampler(params).edits_follow_tokens());
  }
  for (const SamplingParams& params : any_time) {
    EXPECT_TRUE(make_sampler(params).edits_logits());
    EXPECT_FALSE(make_sampler(params).edits_follow_tokens());
  }

  // Until the stop ids may come.
  SequenceSampler sampler = make_sampler({.min_tokens = 1});
  SamplingScratch scratch;
  EXPECT_FALSE(sampler.edits_logits(1));
  sampler.accept(7);
  EXPECT_FALSE(sampler.edits_logits());
  EXPECT_FALSE(sampler.take(-1, scratch).ok());
}

}  // namespace
}  // namespace quire::sampling
