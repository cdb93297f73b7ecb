// What the proposers of text guess.
#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runner/draft/proposers.h"
#include "runner/draft/token_window.h"

namespace quire::runner {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

using Ids = std::vector<TokenId>;

DraftProposal ask(DraftProposer& proposer, const DraftText& text, int32_t most = 8) {
  DraftProposal proposal;
  proposer.propose(text, most, proposal);
  EXPECT_LE(proposal.tokens.size(), static_cast<size_t>(most));
  EXPECT_EQ(proposal.agreement.size(), proposal.tokens.size());
  return proposal;
}

// ---- the window ----

// All places by looking at each: the latest first.
std::vector<std::pair<uint32_t, int32_t>> places_by_looking(const Ids& all, size_t first, const Ids& text,
                                                            int32_t shortest, int32_t longest) {
  std::vector<std::pair<uint32_t, int32_t>> places;
  for (size_t next = all.size(); next-- > first;) {
    int32_t length = 0;
    while (length < longest && static_cast<size_t>(length) < text.size() &&
           next - first > static_cast<size_t>(length) &&
           all[next - 1 - static_cast<size_t>(length)] == text[text.size() - 1 - static_cast<size_t>(length)] &&
           all[next - 1 - static_cast<size_t>(length)] != TokenWindow::kGap) {
      ++length;
    }
    if (all[next] != TokenWindow::kGap && length >= shortest) places.emplace_back(static_cast<uint32_t>(next), length);
  }
  return places;
}

TEST(TokenWindow, FindsWhatLookingAtEveryPlaceFinds) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const auto key = static_cast<int32_t>(1 + random() % 4);
    const size_t capacity = random() % 3 == 0 ? 0 : 8 + random() % 60;
    TokenWindow window(key, capacity);
    Ids all;
    const auto vocabulary = 2 + random() % 6;
    for (int i = 0; i < 200; ++i) {
      all.push_back(random() % 20 == 0 ? TokenWindow::kGap : static_cast<TokenId>(random() % vocabulary));
      window.append(all.back());
      Ids text;
      for (size_t j = random() % 12; j > 0; --j) text.push_back(static_cast<TokenId>(random() % vocabulary));
      if (random() % 2 == 0) {  // its own end
        for (size_t j = all.size(); j > 0 && text.size() < 12 && all[j - 1] != TokenWindow::kGap; --j) {
          text.insert(text.begin(), all[j - 1]);
        }
      }
      std::vector<TokenWindow::Place> places;
      window.find(text, 9, 1000, places);
      std::vector<std::pair<uint32_t, int32_t>> found;
      for (const auto& place : places) found.emplace_back(place.next, place.length);
      const size_t first = capacity == 0 || all.size() <= capacity ? 0 : all.size() - capacity;
      auto expected = places_by_looking(all, first, text, key, 9);
      if (capacity > 0) {
        // Where keys share a hash with such as are overwritten, the oldest may be missed; nothing else may be found.
        ASSERT_LE(found.size(), expected.size());
        for (const auto& one : found) ASSERT_THAT(expected, testing::Contains(one));
        if (!expected.empty()) {
          ASSERT_FALSE(found.empty());
          ASSERT_EQ(found.front(), expected.front()) << "the latest is always found";
        }
      } else {
        ASSERT_EQ(found, expected);
      }
    }
  }
}

TEST(TokenWindow, TakesABoundedAmountOfMemory) {
  TokenWindow window(2, 1000);
  for (int i = 0; i < 100000; ++i) window.append(static_cast<TokenId>(i % 777));
  EXPECT_LE(window.heap_bytes(), 1000 * 8 * 2 + 1024 * 4u);
  EXPECT_EQ(window.end() - window.begin(), 1000u);
}

// ---- n-grams ----

TEST(NgramProposer, ContinuesTheLatestPlaceOfTheLongestRun) {
  const auto proposer = make_ngram_proposer({.prompt_lookup_min = 2, .prompt_lookup_max = 3});
  const Ids text = {1, 2, 3, 4, 5, 9, 2, 3, 6, 7, 8, 2, 3};
  EXPECT_THAT(ask(*proposer, {.id = 1, .tokens = text}, 3).tokens, ElementsAre(6, 7, 8));
  const Ids longer = {1, 2, 3, 4, 5, 9, 2, 3, 6, 7, 8, 1, 2, 3};
  EXPECT_THAT(ask(*proposer, {.id = 2, .tokens = longer}, 2).tokens, ElementsAre(4, 5)) << "three match there";
  const Ids nothing = {1, 2, 3, 4, 3};
  EXPECT_THAT(ask(*proposer, {.id = 3, .tokens = nothing}).tokens, IsEmpty()) << "one is too few";
}

TEST(NgramProposer, GoesRoundWhereTheTextDoes) {
  const auto proposer = make_ngram_proposer({.prompt_lookup_min = 1, .prompt_lookup_max = 4});
  const Ids text = {5, 1, 2, 1, 2, 1, 2};
  EXPECT_THAT(ask(*proposer, {.id = 1, .tokens = text}, 6).tokens, ElementsAre(1, 2, 1, 2, 1, 2));
}

TEST(NgramProposer, FollowsATextThatGrowsAndForgetsOneThatEnds) {
  const auto proposer = make_ngram_proposer({.prompt_lookup_min = 2, .prompt_lookup_max = 2});
  Ids text = {1, 2, 3};
  EXPECT_THAT(ask(*proposer, {.id = 1, .tokens = text}).tokens, IsEmpty());
  text.insert(text.end(), {4, 1, 2});
  EXPECT_THAT(ask(*proposer, {.id = 1, .tokens = text}, 2).tokens, ElementsAre(3, 4));
  proposer->ended({.id = 1, .tokens = text});
  const Ids other = {1, 2};
  EXPECT_THAT(ask(*proposer, {.id = 1, .tokens = other}).tokens, IsEmpty()) << "another sequence of that number";
}

// ---- suffixes ----

SpeculativeConfig suffixes(double factor = 8) {
  return {.method = SpeculativeMethod::kSuffix, .suffix_decoding_max_spec_factor = factor};
}

TEST(SuffixProposer, RemembersAnswersOfTheSameTenantSaltAndAdapter) {
  const auto proposer = make_suffix_proposer(suffixes());
  const Ids first = {100, 1, 2, 3, 4, 5, 6, 7};
  DraftText text{.id = 1, .tokens = first, .num_prompt_tokens = 1, .tenant = 3, .salt = "s", .adapter = 2};
  ask(*proposer, text);
  proposer->ended(text);
  const Ids second = {200, 2, 3};
  text.id = 2;
  text.tokens = second;
  EXPECT_THAT(ask(*proposer, text).tokens, ElementsAre(4, 5, 6, 7));
  for (const auto& [tenant, salt, adapter] :
       {std::tuple(4, "s", 2), std::tuple(3, "t", 2), std::tuple(3, "", 2), std::tuple(3, "s", 0)}) {
    const DraftText other{
        .id = 3, .tokens = second, .num_prompt_tokens = 1, .tenant = tenant, .salt = salt, .adapter = adapter};
    EXPECT_THAT(ask(*proposer, other).tokens, IsEmpty()) << "nobody's text shows in another's speed";
  }
}

TEST(SuffixProposer, PlacesVote) {
  const auto proposer = make_suffix_proposer(suffixes());
  const Ids text = {1, 2, 7, 0, 1, 2, 8, 0, 1, 2, 7, 0, 3, 1, 2};
  const DraftProposal proposal = ask(*proposer, {.id = 1, .tokens = text}, 2);
  EXPECT_THAT(proposal.tokens, ElementsAre(7, 0));
  EXPECT_EQ(proposal.num_matched, 2);
  EXPECT_NEAR(proposal.agreement[0], 2.0 / 3, 1e-6);
  EXPECT_NEAR(proposal.agreement[1], 1.0, 1e-6);
}

TEST(SuffixProposer, GuessesAsFarAsTheMatchCarries) {
  Ids text;
  for (TokenId id = 0; id < 60; ++id) text.push_back(id);
  for (TokenId id = 10; id < 14; ++id) text.push_back(id);
  const auto careful = make_suffix_proposer(suffixes(1.5));
  EXPECT_THAT(ask(*careful, {.id = 1, .tokens = text}, 40).tokens, SizeIs(6)) << "1.5 for each that matched";
  const auto bold = make_suffix_proposer(suffixes(100));
  EXPECT_THAT(ask(*bold, {.id = 1, .tokens = text}, 40).tokens, SizeIs(24)) << "the tree's depth";
}

TEST(SuffixProposer, ForgetsTheOldestAnswers) {
  SpeculativeConfig config = suffixes();
  config.suffix_decoding_max_cached_requests = 2;
  const auto proposer = make_suffix_proposer(config);
  for (TokenId answer = 0; answer < 3; ++answer) {
    const TokenId base = 10 * answer;
    const Ids text = {900, base + 1, base + 2, base + 3, base + 4};
    const DraftText one{.id = static_cast<SequenceId>(answer), .tokens = text, .num_prompt_tokens = 1};
    ask(*proposer, one);
    proposer->ended(one);
  }
  for (const auto& [base, size] : {std::pair(0, 0u), std::pair(10, 2u), std::pair(20, 2u)}) {
    const Ids text = {901, base + 1, base + 2};
    EXPECT_THAT(ask(*proposer, {.id = 9, .tokens = text, .num_prompt_tokens = 1}).tokens, SizeIs(size)) << base;
    proposer->ended({.id = 9, .tokens = text, .num_prompt_tokens = 1});
  }
}

// ---- predictions ----

// What is accepted of a prediction, token by token, of an answer that is known; steps it takes.
std::pair<int, int> follow(const Ids& prediction, const Ids& answer, int32_t most) {
  const auto proposer = make_prediction_proposer();
  Ids text = {777};
  int steps = 0;
  int wrong = 0;
  while (text.size() <= answer.size()) {
    const DraftProposal proposal =
        ask(*proposer, {.id = 1, .tokens = text, .num_prompt_tokens = 1, .prediction = prediction}, most);
    size_t i = 0;
    while (i < proposal.tokens.size() && text.size() <= answer.size() &&
           proposal.tokens[i] == answer[text.size() - 1]) {
      text.push_back(answer[text.size() - 1]);
      ++i;
    }
    wrong += static_cast<int>(proposal.tokens.size() - i);
    if (text.size() <= answer.size()) text.push_back(answer[text.size() - 1]);
    ++steps;
  }
  return {steps, wrong};
}

TEST(PredictionProposer, IsFollowedToItsEnd) {
  Ids answer(100);
  std::mt19937 random(3);
  for (TokenId& token : answer) token = static_cast<TokenId>(random() % 50);
  EXPECT_EQ(follow(answer, answer, 9).first, 10);
}

TEST(PredictionProposer, IsFoundAgainBehindWhatWasChangedLeftOutAndPutIn) {
  std::mt19937 random(5);
  Ids prediction(400);
  for (TokenId& token : prediction) token = static_cast<TokenId>(random() % 60);  // each token stands in many places
  Ids answer = prediction;
  answer[50] = 61;
  answer.erase(answer.begin() + 120, answer.begin() + 130);
  answer.insert(answer.begin() + 200, {62, 63, 64, 65, 66});
  answer[300] = 67;
  const auto [steps, wrong] = follow(prediction, answer, 16);
  EXPECT_LE(steps, 50) << "395 tokens";
  EXPECT_LE(wrong, 16 * 12);
}

TEST(PredictionProposer, SaysNothingWithoutOneAndNothingUseless) {
  const auto proposer = make_prediction_proposer();
  const Ids text = {1, 2, 3};
  EXPECT_THAT(ask(*proposer, {.id = 1, .tokens = text, .num_prompt_tokens = 1}).tokens, IsEmpty());
  const Ids other = {8, 9};
  EXPECT_THAT(ask(*proposer, {.id = 2, .tokens = text, .num_prompt_tokens = 1, .prediction = other}).tokens, IsEmpty())
      << "the answer has left it and is nowhere in it";
}

TEST(Proposer, OfAConfigurationAsksThePredictionFirst) {
  const auto proposer = make_proposer({.method = SpeculativeMethod::kNgram, .prompt_lookup_min = 1});
  const Ids text = {1, 2, 3, 1};
  const Ids prediction = {5, 6};
  EXPECT_THAT(ask(*proposer, {.id = 1, .tokens = text, .num_prompt_tokens = 4, .prediction = prediction}).tokens,
              ElementsAre(5, 6));
  EXPECT_THAT(ask(*proposer, {.id = 2, .tokens = text, .num_prompt_tokens = 4}, 2).tokens, ElementsAre(2, 3));
}

}  // namespace
}  // namespace quire::runner
