#include "sched/beam_search.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <boost/json.hpp>

namespace quire::sched {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

namespace json = boost::json;

// scripts/make_beam_data.py: the logit of token t at position p behind the token l is logits[l][t] + drift[(5 p + t) %
// 31].
class Language {
 public:
  explicit Language(const json::value& data)
      : logits_(json::value_to<std::vector<std::vector<double>>>(data.at("logits"))),
        drift_(json::value_to<std::vector<double>>(data.at("drift"))) {}

  // The most likely tokens behind `last`; the banned ones cannot be said at all.
  std::vector<TokenLogprob> candidates(int32_t position, TokenId last, int32_t count,
                                       const std::vector<TokenId>& banned) const {
    std::vector<double> row = logits_[static_cast<size_t>(last)];
    double sum = 0;
    for (size_t token = 0; token < row.size(); ++token) {
      row[token] += drift_[(5 * static_cast<size_t>(position) + token) % drift_.size()];
      sum += std::exp(row[token]);
    }
    std::vector<TokenLogprob> all;
    for (size_t token = 0; token < row.size(); ++token) {
      const auto id = static_cast<TokenId>(token);
      if (std::ranges::count(banned, id) > 0) continue;
      all.push_back({id, static_cast<float>(row[token] - std::log(sum)), 0});
    }
    std::ranges::stable_sort(all, std::greater<>(), &TokenLogprob::logprob);
    if (all.size() > static_cast<size_t>(count)) all.resize(static_cast<size_t>(count));
    return all;
  }

 private:
  std::vector<std::vector<double>> logits_;  // [last token, token]
  std::vector<double> drift_;
};

EarlyStopping early_stopping(const json::value& value) {
  if (value.is_string()) return EarlyStopping::kNever;
  return value.as_bool() ? EarlyStopping::kTrue : EarlyStopping::kFalse;
}

std::vector<BeamAnswer> search(const Language& language, TokenId first, const BeamSearch::Config& config) {
  BeamSearch search(config);
  std::vector<TokenId> last = {first};
  std::vector<BeamMoveChoice> moves;
  for (int32_t length = 0;; ++length) {
    std::vector<TokenId> banned;
    if (length < config.min_tokens) banned.assign(config.end_ids.begin(), config.end_ids.end());
    std::vector<std::vector<TokenLogprob>> candidates;
    for (const TokenId token : last)
      candidates.push_back(language.candidates(length, token, search.num_candidates(), banned));
    if (!search.advance(candidates, moves)) return search.take_answers();
    EXPECT_EQ(static_cast<size_t>(search.num_open()), moves.size());
    last.clear();
    for (const BeamMoveChoice& move : moves) last.push_back(move.token);
  }
}

TEST(BeamSearchOracle, AnswersAndScoresAreThoseOfTransformers) {
  std::ifstream file(QUIRE_TEST_DATA "/beam_search/table.json");
  std::stringstream contents;
  contents << file.rdbuf();
  const json::value data = json::parse(contents.str());
  int num_cases = 0;
  for (const json::value& language : data.at("languages").as_array()) {
    const Language words(language);
    for (const json::value& one : language.at("cases").as_array()) {
      SCOPED_TRACE(json::serialize(one));
      ++num_cases;
      BeamSearch::Config config{.num_beams = one.at("num_beams").to_number<int32_t>(),
                                .length_penalty = one.at("length_penalty").to_number<double>(),
                                .early_stopping = early_stopping(one.at("early_stopping")),
                                .end_ids = json::value_to<std::vector<TokenId>>(one.at("eos_token_ids")),
                                .min_tokens = one.at("min_new_tokens").to_number<int32_t>(),
                                .max_tokens = one.at("max_new_tokens").to_number<int32_t>(),
                                .logprobs = std::nullopt};
      const std::vector<BeamAnswer> answers = search(words, one.at("first_token").to_number<TokenId>(), config);
      const json::array& expected = one.at("answers").as_array();
      ASSERT_THAT(answers, SizeIs(expected.size()));
      for (size_t i = 0; i < answers.size(); ++i) {
        EXPECT_EQ(answers[i].tokens, json::value_to<std::vector<TokenId>>(expected[i].at("tokens"))) << "answer " << i;
        EXPECT_NEAR(answers[i].score, expected[i].at("score").to_number<double>(), 1e-4) << "answer " << i;
      }
    }
  }
  EXPECT_GE(num_cases, 100);
}

// ---- what the oracle does not say ----

TokenLogprob offer(TokenId id, float logprob) {
  return {id, logprob, 1};
}

TEST(BeamSearch, TheFirstStepBranchesFromOneBeam) {
  BeamSearch search({.num_beams = 3, .end_ids = {9}, .max_tokens = 4});
  EXPECT_EQ(search.num_open(), 1);
  EXPECT_EQ(search.num_candidates(), 6);
  std::vector<BeamMoveChoice> moves;
  const std::vector<std::vector<TokenLogprob>> candidates = {
      {offer(1, -1), offer(2, -2), offer(3, -3), offer(4, -4), offer(5, -5), offer(6, -6)}};
  ASSERT_TRUE(search.advance(candidates, moves));
  ASSERT_THAT(moves, SizeIs(3));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(moves[i].source, 0);
    EXPECT_EQ(moves[i].token, static_cast<TokenId>(i + 1));
  }
  EXPECT_EQ(search.num_open(), 3);
}

TEST(BeamSearch, SoManyCandidatesAreAskedForThatEnoughRemainWhenEveryEndIdIsAmongThem) {
  EXPECT_EQ(BeamSearch({.num_beams = 4, .max_tokens = 1}).num_candidates(), 8);
  EXPECT_EQ(BeamSearch({.num_beams = 4, .end_ids = {1, 2, 3}, .max_tokens = 1}).num_candidates(), 8);
  EXPECT_EQ(BeamSearch({.num_beams = 2, .end_ids = {1, 2, 3, 2, 1}, .max_tokens = 1}).num_candidates(), 2 + 3);
  EXPECT_EQ(BeamSearch({.num_beams = 2, .max_tokens = 1, .logprobs = 20}).num_candidates(), 20);
}

TEST(BeamSearch, HoweverLongTheListOfEndIdsTheWorkOfAStepIsBoundedByTheBeams) {
  constexpr int32_t kBeams = 128;
  std::vector<TokenId> end_ids;
  for (TokenId id = 0; id < 140'000; ++id) end_ids.push_back(id);
  end_ids.insert(end_ids.end(), end_ids.begin(), end_ids.end());
  BeamSearch search(
      {.num_beams = kBeams, .early_stopping = EarlyStopping::kNever, .end_ids = std::move(end_ids), .max_tokens = 8});
  ASSERT_EQ(search.num_candidates(), 2 * kBeams);
  std::vector<BeamMoveChoice> moves;
  // All of a beam's candidates but the last are end ids.
  std::vector<TokenLogprob> offered;
  for (int i = 1; i < search.num_candidates(); ++i) offered.push_back(offer(i, -5 - 0.001f * static_cast<float>(i)));
  offered.push_back(offer(150'000, -6));
  int64_t before = 0;
  for (int step = 0; step < 4; ++step) {
    const int32_t open = search.num_open();
    ASSERT_TRUE(search.advance(std::vector<std::vector<TokenLogprob>>(static_cast<size_t>(open), offered), moves));
    EXPECT_EQ(moves.back().token, 150'000);
    EXPECT_LE(search.num_ranked() - before, int64_t{open} * 2 * kBeams);
    before = search.num_ranked();
  }
  EXPECT_THAT(search.take_answers(), SizeIs(kBeams));
}

TEST(BeamSearch, NoMoreCandidatesAreLookedAtThanAreNeeded) {
  BeamSearch search({.num_beams = 4, .end_ids = {99}, .max_tokens = 8});
  std::vector<BeamMoveChoice> moves;
  std::vector<TokenLogprob> offered;
  for (int i = 1; i <= search.num_candidates(); ++i) offered.push_back(offer(i, -static_cast<float>(i)));
  ASSERT_TRUE(search.advance(std::vector<std::vector<TokenLogprob>>{offered}, moves));
  EXPECT_EQ(search.num_ranked(), 4);
  ASSERT_TRUE(search.advance(std::vector<std::vector<TokenLogprob>>(4, offered), moves));
  EXPECT_EQ(search.num_ranked(), 8) << "of four beams the best four";
}

TEST(BeamSearch, EqualSumsAreRankedByBeamThenByPlace) {
  BeamSearch search({.num_beams = 3, .max_tokens = 8});
  std::vector<BeamMoveChoice> moves;
  ASSERT_TRUE(
      search.advance(std::vector<std::vector<TokenLogprob>>{{offer(1, -1), offer(2, -1), offer(3, -1)}}, moves));
  ASSERT_TRUE(search.advance(
      std::vector<std::vector<TokenLogprob>>{
          {offer(4, -2), offer(5, -2)}, {offer(6, -1), offer(7, -2)}, {offer(8, -2), offer(9, -2)}},
      moves));
  ASSERT_THAT(moves, SizeIs(3));
  EXPECT_EQ(moves[0].token, 6);
  EXPECT_EQ(moves[1].token, 4);
  EXPECT_EQ(moves[2].token, 5);
}

TEST(BeamSearch, AVocabularySmallerThanTheBeamsLeavesFewerOpen) {
  BeamSearch search({.num_beams = 3, .max_tokens = 2});
  std::vector<BeamMoveChoice> moves;
  ASSERT_TRUE(search.advance(std::vector<std::vector<TokenLogprob>>{{offer(1, -1), offer(2, -2)}}, moves));
  EXPECT_EQ(search.num_open(), 2);
  EXPECT_FALSE(search.advance(
      std::vector<std::vector<TokenLogprob>>{{offer(1, -1), offer(2, -2)}, {offer(1, -1), offer(2, -3)}}, moves));
  EXPECT_THAT(search.take_answers(), SizeIs(3));
}

TEST(BeamSearch, WhatCannotBeSaidIsNoWayOn) {
  BeamSearch search({.num_beams = 2, .max_tokens = 3});
  std::vector<BeamMoveChoice> moves;
  const float never = -std::numeric_limits<float>::infinity();
  ASSERT_TRUE(search.advance(std::vector<std::vector<TokenLogprob>>{{offer(1, -1), offer(2, never)}}, moves));
  EXPECT_THAT(moves, SizeIs(1));
}

TEST(BeamSearch, AnEndIdBeforeMinTokensEndsNothing) {
  BeamSearch search({.num_beams = 1, .end_ids = {9}, .min_tokens = 2, .max_tokens = 4});
  std::vector<BeamMoveChoice> moves;
  ASSERT_TRUE(search.advance(std::vector<std::vector<TokenLogprob>>{{offer(9, -1), offer(2, -2)}}, moves));
  EXPECT_EQ(moves[0].token, 9);
  EXPECT_FALSE(search.advance(std::vector<std::vector<TokenLogprob>>{{offer(9, -0.1f), offer(2, -5)}}, moves));
  const std::vector<BeamAnswer> answers = search.take_answers();
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_THAT(answers[0].tokens, ElementsAre(9, 9));
  EXPECT_EQ(answers[0].finish, FinishReason::kStop);
  EXPECT_NEAR(answers[0].cumulative_logprob, -1.1, 1e-6);
  EXPECT_NEAR(answers[0].score, -0.55, 1e-6);
}

TEST(BeamSearch, LogprobsFollowTheBeamsThatTheyBelongTo) {
  BeamSearch search({.num_beams = 2, .max_tokens = 2, .logprobs = 1});
  std::vector<BeamMoveChoice> moves;
  ASSERT_TRUE(search.advance(
      std::vector<std::vector<TokenLogprob>>{{offer(1, -1), offer(2, -2), offer(3, -3), offer(4, -4)}}, moves));
  ASSERT_FALSE(search.advance(
      std::vector<std::vector<TokenLogprob>>{{offer(5, -4), offer(6, -5)}, {offer(7, -1), offer(8, -9)}}, moves));
  const std::vector<BeamAnswer> answers = search.take_answers();
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_THAT(answers[0].tokens, ElementsAre(2, 7));
  ASSERT_THAT(answers[0].logprobs, SizeIs(2));
  EXPECT_EQ(answers[0].logprobs[0].chosen.id, 2);
  ASSERT_THAT(answers[0].logprobs[0].top, SizeIs(1));
  EXPECT_EQ(answers[0].logprobs[0].top[0].id, 1);
  EXPECT_EQ(answers[0].logprobs[1].chosen.id, 7);
  EXPECT_EQ(answers[0].logprobs[1].top[0].id, 7);
  EXPECT_EQ(answers[0].finish, FinishReason::kLength);
}

TEST(BeamSearch, OneBeamIsTheGreedyAnswer) {
  BeamSearch search({.num_beams = 1, .max_tokens = 3});
  std::vector<BeamMoveChoice> moves;
  const std::vector<std::vector<TokenLogprob>> candidates = {{offer(4, -0.5f), offer(2, -2)}};
  EXPECT_TRUE(search.advance(candidates, moves));
  EXPECT_TRUE(search.advance(candidates, moves));
  EXPECT_FALSE(search.advance(candidates, moves));
  const std::vector<BeamAnswer> answers = search.take_answers();
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_THAT(answers[0].tokens, ElementsAre(4, 4, 4));
  EXPECT_THAT(answers[0].logprobs, IsEmpty());
  EXPECT_FLOAT_EQ(static_cast<float>(answers[0].score), -0.5f);
}

}  // namespace
}  // namespace quire::sched
