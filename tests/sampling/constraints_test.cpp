// Allowed tokens, bad words and DRY, and what is left at their edges.
#include <limits>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sampling/dry.h"
#include "sampling/logprobs.h"
#include "sampling/sequence_sampler.h"
#include "tests/sampling/constrained_params.h"

namespace quire::sampling {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::SizeIs;

constexpr float kInf = std::numeric_limits<float>::infinity();

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0.0f;
  return params;
}

Result<SampledToken> first_token(const ConstrainedParams& params, std::vector<float> logits,
                                 const std::vector<TokenId>& prompt = {}, const std::vector<TokenId>& output = {}) {
  SequenceSampler sampler(std::make_shared<const SamplingParams>(params), prompt, 1,
                          static_cast<int64_t>(logits.size()), {}, output, params.constraint);
  SamplingScratch scratch;
  return sampler.sample(logits, scratch);
}

TEST(AllowedTokens, NoOtherIsChosen) {
  SamplingParams params = greedy();
  params.allowed_token_ids = {2, 0, 2, 55, -7};
  EXPECT_EQ(first_token(params, {1.0f, 9.0f, 0.0f})->id, 0);
  params.temperature = 2.0f;
  for (int i = 0; i < 50; ++i) EXPECT_NE(first_token(params, {1.0f, 9.0f, 0.0f})->id, 1);
}

TEST(AllowedTokens, ABiasCountsAmongThemAndDoesNotAdmitAnother) {
  SamplingParams params = greedy();
  params.allowed_token_ids = {0, 2};
  params.logit_bias = {{1, 100.0f}, {2, 3.0f}};
  EXPECT_EQ(first_token(params, {1.0f, 9.0f, 0.0f})->id, 2);
}

TEST(AllowedTokens, LogprobsStayThoseOfTheModel) {
  SamplingParams params = greedy();
  params.allowed_token_ids = {0};
  params.logprobs = 1;
  const Result<SampledToken> sampled = first_token(params, {0.0f, 0.0f, 0.0f, 0.0f});
  EXPECT_NEAR(sampled->logprobs->chosen.logprob, std::log(0.25f), 1e-6f);
}

TEST(BadWords, ASingleTokenIsNeverChosenAndALongerWordIsNotCompleted) {
  SamplingParams params = greedy();
  params.bad_words_ids = {{3}, {1, 2}};
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f, 3.0f};
  EXPECT_EQ(first_token(params, logits)->id, 2);
  EXPECT_EQ(first_token(params, logits, {}, {1})->id, 1);
  EXPECT_EQ(first_token(params, logits, {}, {1, 0})->id, 2);
}

TEST(BadWords, MayBeginInThePrompt) {
  SamplingParams params = greedy();
  params.bad_words_ids = {{0, 1, 2}};
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f};
  EXPECT_EQ(first_token(params, logits, {2, 0}, {1})->id, 1);
  EXPECT_EQ(first_token(params, logits, {0, 1}, {})->id, 1);
  EXPECT_EQ(first_token(params, logits, {1}, {})->id, 2);
}

TEST(BadWords, AreStillSeenAfterALongAnswer) {
  SamplingParams params = greedy();
  params.bad_words_ids = {{0, 1, 0, 2}};
  SequenceSampler sampler(std::make_shared<const SamplingParams>(params), {}, 1, 3, {});
  SamplingScratch scratch;
  const auto next = [&](std::vector<float> logits) { return sampler.sample(logits, scratch)->id; };
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(next({1.0f, 0.0f, 0.0f}), 0);
    ASSERT_EQ(next({0.0f, 1.0f, 0.0f}), 1);
    ASSERT_EQ(next({1.0f, 0.0f, 0.0f}), 0);
    ASSERT_EQ(next({0.0f, 1.0f, 2.0f}), 1);
    ASSERT_EQ(next({0.0f, 0.0f, 1.0f}), 2);
  }
}

// ---- DRY ----

std::shared_ptr<const DryBreakers> breakers(const std::vector<std::vector<TokenId>>& sequences) {
  return std::make_shared<const DryBreakers>(sequences);
}

std::vector<float> dry_penalties(const SamplingParams& params, const std::vector<TokenId>& history, size_t vocab_size) {
  std::vector<float> logits(vocab_size, 0.0f);
  SamplingScratch scratch;
  DryPenalty(params).apply(history, logits, scratch);
  for (float& logit : logits) logit = -logit;
  return logits;
}

SamplingParams dry() {
  SamplingParams params = greedy();
  params.dry_multiplier = 1.0f;
  params.dry_base = 2.0f;
  return params;
}

TEST(Dry, PenalisesTheTokenThatWouldContinueARunExponentiallyInItsLength) {
  SamplingParams params = dry();
  // 1 2 3 4 came before: with 1 2 at the end, 3 would repeat it; with 1 2 3, 4 would.
  EXPECT_THAT(dry_penalties(params, {1, 2, 3, 4, 0, 1, 2}, 5), ElementsAre(0, 0, 0, 1, 0));
  EXPECT_THAT(dry_penalties(params, {1, 2, 3, 4, 0, 1, 2, 3}, 5), ElementsAre(0, 0, 0, 0, 2));
  EXPECT_THAT(dry_penalties(params, {1, 2, 3, 4, 0, 1}, 5), Each(0.0f));
  params.dry_allowed_length = 1;
  EXPECT_THAT(dry_penalties(params, {1, 2, 3, 4, 0, 1}, 5), ElementsAre(0, 0, 1, 0, 0));
  params.dry_allowed_length = 0;
  EXPECT_THAT(dry_penalties(params, {1, 2, 3}, 5), ElementsAre(0, 0, 1, 1, 0));
}

TEST(Dry, ABreakerEndsARunAndIsFreeItself) {
  SamplingParams params = dry();
  params.dry_breakers = breakers({{0}, {3, 4}});
  // The run at the end is 2 3 behind the breaker 0, of the 1 0 2 3 that came before.
  EXPECT_THAT(dry_penalties(params, {1, 0, 2, 3, 1, 1, 0, 2, 3}, 5), ElementsAre(0, 1, 0, 0, 0));
  EXPECT_THAT(dry_penalties(params, {1, 2, 0, 4, 4, 1, 2}, 5), Each(0.0f));
  EXPECT_THAT(dry_penalties(params, {1, 2, 1, 4, 3, 4, 1, 2}, 5), ElementsAre(0, 1, 0, 0, 0));
  EXPECT_THAT(dry_penalties(params, {2, 1, 1, 2, 3, 4, 1, 1}, 5), ElementsAre(0, 0, 1, 0, 0));
  EXPECT_THAT(dry_penalties(params, {2, 1, 1, 2, 1, 3, 4, 1}, 5), Each(0.0f));
}

TEST(Dry, ABreakerCountsWithItsFirstTwentyTokens) {
  SamplingParams params = dry();
  params.dry_breakers = breakers({std::vector<TokenId>(30, 1)});
  std::vector<TokenId> history = {2, 2, 0, 2};
  history.insert(history.end(), 19, 1);
  const std::vector<TokenId> again = {2, 2, 3, 2, 2};
  history.insert(history.end(), again.begin(), again.end());
  EXPECT_THAT(dry_penalties(params, history, 4), ElementsAre(1, 0, 0, 1));
  history.insert(history.end() - 1, 20, 1);  // now only one token stands behind the breaker
  EXPECT_THAT(dry_penalties(params, history, 4), Each(0.0f));
}

TEST(Dry, LooksAtTheLastTokensOnly) {
  SamplingParams params = dry();
  const std::vector<TokenId> history = {1, 2, 3, 0, 0, 1, 2};
  params.dry_penalty_last_n = 7;
  EXPECT_THAT(dry_penalties(params, history, 4), ElementsAre(0, 0, 0, 1));
  params.dry_penalty_last_n = 6;
  EXPECT_THAT(dry_penalties(params, history, 4), Each(0.0f));
}

TEST(Dry, SeesThePrompt) {
  SamplingParams params = dry();
  EXPECT_EQ(first_token(params, {0.0f, 0.0f, 0.0f, 0.5f}, {1, 2, 3, 0, 1}, {2})->id, 0);
  EXPECT_EQ(first_token(params, {0.0f, 0.0f, 0.0f, 0.5f}, {1, 2, 3, 0, 1}, {1})->id, 3);
}

TEST(Dry, ARunOfAnyLengthLeavesALogitThatIsANumber) {
  SamplingParams params = dry();
  params.dry_multiplier = 3e38f;
  params.dry_base = 3e38f;
  const std::vector<TokenId> history(5000, 1);
  EXPECT_LT(dry_penalties(params, history, 3)[1], kInf);
  EXPECT_GT(dry_penalties(params, history, 3)[1], 1e30f);
  EXPECT_EQ(first_token(params, {0.0f, 50.0f, 0.0f}, history)->id, 0);
  params.allowed_token_ids = {1};
  EXPECT_EQ(first_token(params, {0.0f, 50.0f, 0.0f}, history)->id, 1);
}

TEST(Dry, TokensOutsideTheRowAreOfNoEffect) {
  EXPECT_THAT(dry_penalties(dry(), {1, 2, 7, 1, 2, -3, 1, 2}, 3), Each(0.0f));
}

// ---- edges ----

std::vector<SamplingParams> every_method() {
  std::vector<SamplingParams> all(9);
  all[0].typical_p = 0.5f;
  all[1].top_n_sigma = 0.5f;
  all[2].dynatemp_range = 1.0f;
  all[3].xtc_probability = 1.0f;
  all[4].mirostat = 1;
  all[5].mirostat = 2;
  all[6].dry_multiplier = 1.0f;
  all[7].top_k = 1000;
  all[8].typical_p = 0.5f;
  all[8].top_k = 2;
  all[8].xtc_probability = 1.0f;
  return all;
}

TEST(Edges, AVocabularyOfOneTokenAndOneTokenLeftAreChosenByEveryMethod) {
  for (SamplingParams& params : every_method()) {
    EXPECT_EQ(first_token(params, {-3.0f})->id, 0);
    params.allowed_token_ids = {2};
    EXPECT_EQ(first_token(params, {9.0f, 9.0f, -30.0f, 9.0f})->id, 2);
    EXPECT_EQ(first_token(params, {-kInf, -kInf, -30.0f, -kInf})->id, 2);
  }
}

TEST(Edges, WhereEveryTokenIsBannedEveryMethodReportsItAndStaysAsItWas) {
  for (SamplingParams params : every_method()) {
    params.bad_words_ids = {{0}, {1}};
    std::vector<float> logits = {1.0f, 2.0f};
    SequenceSampler sampler(std::make_shared<const SamplingParams>(params), {}, 1, 2, {});
    SamplingScratch scratch;
    const double mu = sampler.mirostat_mu();
    EXPECT_EQ(sampler.sample(logits, scratch).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(sampler.num_sampled(), 0);
    EXPECT_EQ(sampler.mirostat_mu(), mu);
    logits = {1.0f, 2.0f};
    EXPECT_EQ(sampler.beam_candidates(logits, 2, scratch).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(Edges, AWordThatOnlyTheAnswerMakesForbiddenEndsItWithASentence) {
  SamplingParams params = greedy();
  params.allowed_token_ids = {1};
  params.bad_words_ids = {{1, 1, 1}};
  EXPECT_EQ(first_token(params, {0.0f, 0.0f}, {}, {1})->id, 1);
  const Status refused = first_token(params, {0.0f, 0.0f}, {}, {1, 1}).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.param(), "allowed_token_ids");
  EXPECT_THAT(refused.message(), testing::HasSubstr("no token could be chosen behind 2"));
  // What the model itself never says is no fault of the request's.
  EXPECT_EQ(first_token(params, {0.0f, -kInf}, {}, {1}).status().code(), StatusCode::kInternal);
}

TEST(Edges, EqualLogitsAndExtremeOnesAreFineForEveryMethod) {
  for (const SamplingParams& params : every_method()) {
    const std::vector<float> equal(300, 0.5f);
    ASSERT_TRUE(first_token(params, equal).ok());
    std::vector<float> extreme(300, -3e38f);
    extreme[7] = 3e38f;
    EXPECT_EQ(first_token(params, extreme)->id, 7);
  }
}

TEST(Edges, LogprobsOfTheWholeVocabularyAreAllOfThem) {
  SamplingParams params = greedy();
  params.logprobs = -1;
  const Result<SampledToken> sampled = first_token(params, {0.0f, 2.0f, 1.0f});
  ASSERT_THAT(sampled->logprobs->top, SizeIs(3));
  EXPECT_EQ(sampled->logprobs->top[2].id, 0);
  EXPECT_EQ(sampled->logprobs->top[2].rank, 3);
  const std::vector<float> row = {0.0f, 2.0f, 1.0f};
  EXPECT_THAT(position_logprobs(row, 0, -1)->top, SizeIs(3));
}

TEST(Edges, DynamicTemperatureOfZeroIsGreedy) {
  SamplingParams params;
  params.temperature = 0.5f;
  params.dynatemp_range = 0.5f;
  // So sure a distribution has next to no entropy, so the temperature is next to its least: 0.
  std::vector<float> logits(100, -80.0f);
  logits[3] = 20.0f;
  EXPECT_EQ(first_token(params, logits)->id, 3);
}

// Allows `mask` of the first 32 tokens at every step, accepts `accepted` of them, and counts what it accepted.
class FixedConstraint final : public TokenConstraint {
 public:
  FixedConstraint(uint32_t mask, uint32_t accepted) : mask_(mask), accepted_(accepted) {}
  std::unique_ptr<State> start() const override { return std::make_unique<Fixed>(mask_, accepted_); }
  Status check(std::string_view) const override { return {}; }
  bool whole_only() const override { return false; }

 private:
  struct Fixed final : State {
    Fixed(uint32_t allowed_bits, uint32_t accepted_bits) : bits(allowed_bits), taken(accepted_bits) {}
    std::unique_ptr<State> clone() const override { return std::make_unique<Fixed>(*this); }
    bool allowed(std::span<uint32_t> mask) override {
      mask[0] = bits;
      return true;
    }
    bool accept(TokenId token) override { return (taken >> token & 1) != 0; }
    uint32_t bits;
    uint32_t taken;
  };
  uint32_t mask_;
  uint32_t accepted_;
};

ConstrainedParams constrained(SamplingParams params, uint32_t mask, uint32_t accepted) {
  return {std::move(params), std::make_shared<FixedConstraint>(mask, accepted)};
}

TEST(Constraint, NoOtherTokenIsChosenAndLogprobsStayThoseOfTheModel) {
  ConstrainedParams params = constrained(greedy(), 0b101, 0b101);
  params.logprobs = 1;
  const Result<SampledToken> sampled = first_token(params, {0.0f, 9.0f, 0.0f, 0.0f});
  EXPECT_EQ(sampled->id, 0);
  EXPECT_LT(sampled->logprobs->chosen.logprob, -8.0f);
  params.temperature = 2.0f;
  for (int i = 0; i < 50; ++i) EXPECT_NE(first_token(params, {0.0f, 9.0f, 0.0f, 9.0f})->id % 2, 1);
}

TEST(Constraint, WhatIsAllowedButNotAcceptedIsPassedOver) {
  EXPECT_EQ(first_token(constrained(greedy(), 0b111, 0b100), {9.0f, 8.0f, 0.0f, 10.0f})->id, 2);
  EXPECT_EQ(first_token(constrained(greedy(), 0b011, 0b100), {9.0f, 8.0f, 0.0f}).status().code(),
            StatusCode::kInternal);
}

TEST(Constraint, NothingAllowedIsAnErrorAndAllowedTokensCountBesideIt) {
  EXPECT_EQ(first_token(constrained(greedy(), 0, 0), {1.0f, 2.0f}).status().code(), StatusCode::kInternal);
  ConstrainedParams params = constrained(greedy(), 0b011, 0b111);
  params.allowed_token_ids = {1, 2};
  EXPECT_EQ(first_token(params, {9.0f, 0.0f, 9.0f})->id, 1);
}

TEST(Constraint, ACompleteConstraintEndsBeforeMinTokensOnlyWhereNothingElseMayFollow) {
  ConstrainedParams params = constrained(greedy(), 0b011, 0b111);
  params.min_tokens = 5;
  const auto sample = [](const ConstrainedParams& p) {
    SequenceSampler sampler(std::make_shared<const SamplingParams>(p), {}, 1, 3, {1}, {}, p.constraint);
    SamplingScratch scratch;
    std::vector<float> logits = {0.0f, 9.0f, 0.0f};
    return sampler.sample(logits, scratch);
  };
  EXPECT_EQ(sample(params)->id, 0);
  params.constraint = std::make_shared<FixedConstraint>(0b010, 0b010);
  EXPECT_EQ(sample(params)->id, 1);
}

// Allows the tokens n and n + 2 behind n others, and counts how often it was asked.
class SteppingConstraint final : public TokenConstraint {
 public:
  std::unique_ptr<State> start() const override { return std::make_unique<Step>(*this); }
  Status check(std::string_view) const override { return {}; }
  bool whole_only() const override { return false; }

  mutable int num_masks = 0;

 private:
  struct Step final : State {
    explicit Step(const SteppingConstraint& constraint) : of(constraint) {}
    std::unique_ptr<State> clone() const override { return std::make_unique<Step>(*this); }
    bool allowed(std::span<uint32_t> mask) override {
      ++of.num_masks;
      mask[0] = 0b101U << had;
      return had < 3;  // behind three every token may follow
    }
    bool accept(TokenId) override {
      ++had;
      return true;
    }
    const SteppingConstraint& of;
    int had = 0;
  };
};

TEST(Constraint, AMaskMadeAheadIsThatOfTheNextTokenAlone) {
  for (const bool ahead : {false, true}) {
    const auto constraint = std::make_shared<SteppingConstraint>();
    SequenceSampler sampler(std::make_shared<const SamplingParams>(greedy()), {}, 1, 9, {}, {}, constraint);
    ASSERT_TRUE(sampler.wants_mask());
    SamplingScratch scratch;
    std::vector<TokenId> tokens;
    for (int i = 0; i < 5; ++i) {
      if (ahead) sampler.make_mask();
      const int made = constraint->num_masks;
      std::vector<float> logits = {1.0f, 2.0f, 4.0f, 3.0f, 2.0f, 1.0f, 0.0f, 0.0f, 9.0f};
      SequenceSampler copy = sampler;  // which has its mask, too
      tokens.push_back(sampler.sample(logits, scratch)->id);
      logits = {1.0f, 2.0f, 4.0f, 3.0f, 2.0f, 1.0f, 0.0f, 0.0f, 9.0f};
      EXPECT_EQ(copy.sample(logits, scratch)->id, tokens.back());
      EXPECT_EQ(constraint->num_masks - made, ahead ? 0 : 2);
    }
    EXPECT_THAT(tokens, testing::ElementsAre(2, 3, 2, 8, 8));
  }
}

}  // namespace
}  // namespace quire::sampling
