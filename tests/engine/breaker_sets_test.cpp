#include "engine/breaker_sets.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/prepare_params.h"

namespace quire::engine {
namespace {

// Words are tokens by themselves; other text is one token a letter. Counts what it is asked for.
class CountingTokenizer final : public text::Tokenizer {
 public:
  explicit CountingTokenizer(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}

  std::vector<TokenId> encode(std::string_view text, bool) const override {
    ++num_encoded;
    std::vector<TokenId> ids;
    for (const char c : text) {
      if (const auto id = token_to_id(std::string_view(&c, 1))) ids.push_back(*id);
    }
    return ids;
  }
  std::vector<TokenId> encode(std::span<const text::TextPiece>, bool) const override { return {}; }
  std::string decode(std::span<const TokenId>, bool) const override { return {}; }
  std::string token_bytes(TokenId id) const override {
    ++num_token_bytes;
    return tokens_[static_cast<size_t>(id)];
  }
  std::optional<std::string> id_to_token(TokenId id) const override { return tokens_[static_cast<size_t>(id)]; }
  std::optional<TokenId> token_to_id(std::string_view token) const override {
    const auto found = std::ranges::find(tokens_, token);
    if (found == tokens_.end()) return std::nullopt;
    return static_cast<TokenId>(found - tokens_.begin());
  }
  bool is_special(TokenId) const override { return false; }
  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  std::string description() const override { return "counting"; }
  std::optional<TokenId> bos_id() const override { return std::nullopt; }
  std::vector<TokenId> eos_ids() const override { return {}; }

  mutable int num_encoded = 0;
  mutable int num_token_bytes = 0;

 private:
  std::vector<std::string> tokens_;
};

std::vector<std::string> random_tokens(std::mt19937& random, int count) {
  std::vector<std::string> tokens = {"a", "b", "c"};
  while (static_cast<int>(tokens.size()) < count) {
    std::string token;  // some are empty
    for (auto left = random() % 6; left > 0; --left) token.push_back(static_cast<char>('a' + random() % 3));
    tokens.push_back(token);
  }
  return tokens;
}

TEST(BreakerSets, HoldEveryTokenThatContainsABreakerAndNoOther) {
  const unsigned seed = 12;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const std::vector<std::string> tokens = random_tokens(random, 150);
    const CountingTokenizer tokenizer(tokens);
    BreakerSets sets(tokenizer);
    std::vector<std::string> texts;
    for (auto left = random() % 3; left > 0; --left) {
      texts.push_back(random_tokens(random, 4).back() + (random() % 2 == 0 ? "a" : "bc"));
    }
    const auto breakers = sets.get(texts);
    for (size_t id = 0; id < tokens.size(); ++id) {
      const bool expected = std::ranges::any_of(
          texts, [&](const std::string& text) { return tokens[id].find(text) != std::string::npos; });
      ASSERT_EQ(breakers->is_breaker(static_cast<TokenId>(id)), expected) << tokens[id];
    }
    for (const std::string& text : texts) {
      std::vector<TokenId> spelled = tokenizer.encode(text, false);
      if (spelled.size() > 1) {
        EXPECT_GE(breakers->length_at(spelled), 1u) << text;
      }
    }
  }
}

TEST(BreakerSets, TheSameTextsInAnyOrderAreOneSetAndTheVocabularyIsReadOnce) {
  const CountingTokenizer tokenizer({"a", "b", "c", "ab", "bc", "cab"});
  BreakerSets sets(tokenizer);
  EXPECT_EQ(tokenizer.num_token_bytes, 0) << "a model whose requests have none reads nothing";
  const auto first = sets.get({"ab", "c"});
  const int encoded = tokenizer.num_encoded;
  EXPECT_EQ(sets.get({"c", "ab", "c"}), first);
  EXPECT_EQ(tokenizer.num_encoded, encoded);
  EXPECT_NE(sets.get({"abc"}), first) << "one text is not two";
  EXPECT_NE(sets.get({"c"}), first);
  EXPECT_EQ(sets.num_made(), 3);
  EXPECT_EQ(tokenizer.num_token_bytes, 6);
}

TEST(BreakerSets, KeepNoMoreThanTheirBoundsAndTheLeastRecentlyUsedGo) {
  std::mt19937 random(3);
  const CountingTokenizer tokenizer(random_tokens(random, 2000));
  const auto list = [](int number) { return std::vector<std::string>{"a" + std::to_string(number)}; };
  BreakerSets few(tokenizer, {.max_sets = 3, .max_bytes = 1 << 20});
  const auto kept = few.get(list(0));
  for (int number = 1; number < 50; ++number) {
    few.get(list(number));
    EXPECT_EQ(few.get(list(0)), kept) << "what is used stays";
    EXPECT_LE(few.num_sets(), 3u);
  }
  EXPECT_EQ(few.num_made(), 50);
  BreakerSets small(tokenizer, {.max_sets = 1000, .max_bytes = 2000});
  for (int number = 0; number < 50; ++number) small.get(list(number));
  EXPECT_LE(small.heap_bytes(), 2000);
  EXPECT_GE(small.num_sets(), 2u);
  // Larger than all that may be kept: it is made, and not kept.
  EXPECT_TRUE(small.get({std::string(5000, 'a')})->empty() == false);
  EXPECT_LE(small.heap_bytes(), 2000);
}

TEST(PreparedParams, TellWhatTheyHold) {
  const auto bytes_of = [](SamplingParams params) { return share_params(std::move(params), true).heap_bytes(); };
  const int64_t bare = bytes_of({});
  EXPECT_GE(bare, static_cast<int64_t>(sizeof(SamplingParams)));
  SamplingParams stops;
  stops.stop_token_ids = std::vector<TokenId>(1000);
  EXPECT_EQ(bytes_of(stops), bare + 4000) << "as large as it was given";
  SamplingParams biased;
  biased.logit_bias.assign(500, {1, 1.0f});
  EXPECT_EQ(bytes_of(biased), bare + 500 * 8);
  SamplingParams words;
  words.bad_words_ids.assign(10, std::vector<TokenId>(100));
  EXPECT_EQ(bytes_of(words), bare + 10 * (24 + 400));
  SamplingParams dry;
  dry.dry_breakers = std::make_shared<const DryBreakers>(std::vector<std::vector<TokenId>>{{6399}});
  EXPECT_EQ(bytes_of(dry), bare + 800);
  // A second set, without prompt_logprobs, for the answers after the first.
  EXPECT_GT(bytes_of({.n = 2, .prompt_logprobs = 1}), bytes_of({.n = 2}) + bare / 2);
}

TEST(PreparedParams, WordsThatBecomeTooManyTokensAreNotAllLookedFor) {
  const CountingTokenizer tokenizer({"a"});
  SamplingParams params;
  params.bad_words.assign(1024, std::string(17, 'a'));
  const SamplingLimits limits{.vocab_size = 10};
  EXPECT_EQ(find_words(&tokenizer, nullptr, limits, params).param(), "bad_words");
  params = {};
  params.bad_words.assign(1024, std::string(5000, 'a'));
  tokenizer.num_encoded = 0;
  EXPECT_EQ(find_words(&tokenizer, nullptr, limits, params).param(), "bad_words");
  EXPECT_EQ(tokenizer.num_encoded, 2 * 4) << "16,384 tokens are reached by the fourth word";
}

}  // namespace
}  // namespace quire::engine
