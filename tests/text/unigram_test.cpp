// The trie against a map, Viterbi against every way to cut a text.
#include "text/unigram.h"

#include <map>
#include <random>

#include <gtest/gtest.h>

namespace quire::text {
namespace {

std::string random_word(std::mt19937& random, size_t longest) {
  std::string word(std::uniform_int_distribution<size_t>(1, longest)(random), 'a');
  for (char& letter : word) letter = static_cast<char>('a' + std::uniform_int_distribution<int>(0, 2)(random));
  return word;
}

TEST(ByteTrieTest, FindsWhatAMapFindsAndNothingElse) {
  std::mt19937 random(20);
  std::map<std::string, int32_t> expected;
  for (int i = 0; i < 3000; ++i) {
    std::string key(std::uniform_int_distribution<size_t>(1, 6)(random), '\0');
    for (char& byte : key) byte = static_cast<char>(std::uniform_int_distribution<int>(0, 255)(random));
    expected.emplace(key, i);
  }
  std::vector<ByteTrie::Entry> entries;
  for (const auto& [key, value] : expected) entries.push_back({key, value});
  const ByteTrie trie(entries);
  for (const auto& [key, value] : expected) {
    EXPECT_EQ(trie.find(key), value);
    EXPECT_EQ(trie.find(key + "!"), expected.contains(key + "!") ? expected[key + "!"] : ByteTrie::kNoValue);
  }
  EXPECT_EQ(trie.find(""), ByteTrie::kNoValue);
  EXPECT_EQ(ByteTrie().find("a"), ByteTrie::kNoValue);
  EXPECT_EQ(ByteTrie().longest("a").length, 0u);
}

struct SmallVocabulary {
  TokenTable tokens;
  std::vector<UnigramPiece> pieces;
};

// The greatest sum over all ways to cut `text`, unknown letters included.
double best_score(const SmallVocabulary& vocabulary, std::string_view text, double unk_score) {
  if (text.empty()) return 0;
  double best = -1e9;
  for (size_t length = 1; length <= text.size(); ++length) {
    const auto id = vocabulary.tokens.find(text.substr(0, length));
    double score = id && *id > 0 ? vocabulary.pieces[static_cast<size_t>(*id) - 1].score : -1e9;
    if (length == 1 && !(id && *id > 0)) score = unk_score;
    if (score > -1e8) best = std::max(best, score + best_score(vocabulary, text.substr(length), unk_score));
  }
  return best;
}

TEST(UnigramTest, NoWayToCutATextScoresBetter) {
  std::mt19937 random(4);
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    SmallVocabulary vocabulary;
    ASSERT_TRUE(vocabulary.tokens.add("<unk>", 0, "").ok());
    while (vocabulary.pieces.size() < 12) {
      const auto id = static_cast<TokenId>(vocabulary.pieces.size() + 1);
      if (!vocabulary.tokens.add(random_word(random, 4), id, "").ok()) continue;
      vocabulary.pieces.push_back({id, std::uniform_real_distribution<double>(-9, -1)(random)});
    }
    UnigramOptions options;
    options.unk = 0;
    options.unk_score = -19;
    const auto model = UnigramModel::make(vocabulary.tokens, vocabulary.pieces, options);
    ASSERT_TRUE(model.ok()) << model.status().message();
    const std::string text = random_word(random, 11);
    std::vector<TokenId> ids;
    (*model)->encode(text, ids);
    double score = 0;
    size_t known = 0;
    for (const TokenId id : ids) {
      if (id == 0) continue;
      score += vocabulary.pieces[static_cast<size_t>(id) - 1].score;
      known += vocabulary.tokens.find(id)->size();
    }
    score += options.unk_score * static_cast<double>(text.size() - known);
    EXPECT_NEAR(score, best_score(vocabulary, text, options.unk_score), 1e-9) << text;
  }
}

TEST(UnigramTest, UnknownCharactersInARowAreOneAndFallBackToTheirBytesTogether) {
  TokenTable tokens;
  const std::vector<std::string> spellings = {"<unk>", "a", "<0x78>", "<0xC3>", "<0xA9>"};
  for (size_t i = 0; i < spellings.size(); ++i) {
    ASSERT_TRUE(tokens.add(spellings[i], static_cast<int64_t>(i), "").ok());
  }
  const std::vector<UnigramPiece> pieces = {{1, -1.0}};
  UnigramOptions options;
  options.unk = 0;
  options.unk_score = -11;
  const auto encode = [&](std::string_view text) {
    std::vector<TokenId> ids;
    (*UnigramModel::make(tokens, pieces, options))->encode(text, ids);
    return ids;
  };
  EXPECT_EQ(encode("axyéa"), (std::vector<TokenId>{1, 0, 1}));
  options.byte_fallback = true;
  EXPECT_EQ(encode("axéa"), (std::vector<TokenId>{1, 2, 3, 4, 1}));
  EXPECT_EQ(encode("axyéa"), (std::vector<TokenId>{1, 0, 1}));  // "y" has no byte token: all of the run is unknown
}

}  // namespace
}  // namespace quire::text
