// The merging itself against the definition: again and again the best pair, leftmost first.
#include "text/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace quire::text {
namespace {

struct RandomBpe {
  TokenTable tokens;
  std::vector<std::pair<std::string, std::string>> merges;
};

// Merges of what is known already, in random order of rank: a later merge may have the better rank.
RandomBpe make_random(std::mt19937& random, int num_merges) {
  RandomBpe bpe;
  std::vector<std::string> known = {"a", "b", "c"};
  for (const std::string& token : known) EXPECT_TRUE(bpe.tokens.add(token, bpe.tokens.size(), "vocab").ok());
  for (int i = 0; i < num_merges; ++i) {
    const std::string left = known[random() % known.size()], right = known[random() % known.size()];
    if ((left + right).size() > 12) continue;
    if (!bpe.tokens.find(left + right)) {
      EXPECT_TRUE(bpe.tokens.add(left + right, bpe.tokens.size(), "vocab").ok());
      known.push_back(left + right);
    }
    bpe.merges.emplace_back(left, right);
  }
  std::shuffle(bpe.merges.begin(), bpe.merges.end(), random);
  return bpe;
}

std::vector<TokenId> merge_by_definition(const RandomBpe& bpe, const std::string& piece) {
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  for (size_t i = 0; i < bpe.merges.size(); ++i) ranks.emplace(bpe.merges[i], i);
  std::vector<std::string> symbols;
  for (const char c : piece) symbols.emplace_back(1, c);
  while (true) {
    size_t best = 0, best_rank = SIZE_MAX;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto rank = ranks.find({symbols[i], symbols[i + 1]});
      if (rank != ranks.end() && rank->second < best_rank) {
        best = i;
        best_rank = rank->second;
      }
    }
    if (best_rank == SIZE_MAX) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  std::vector<TokenId> ids;
  for (const std::string& symbol : symbols) ids.push_back(*bpe.tokens.find(symbol));
  return ids;
}

TEST(BpeTest, RandomVocabulariesMergeShortAndLongPiecesAsDefined) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    const RandomBpe bpe = make_random(random, 40);
    MergeList merges(bpe.merges.begin(), bpe.merges.end());
    auto model = BpeModel::make(bpe.tokens, merges, {}, BpeOptions{});
    ASSERT_TRUE(model.ok()) << model.status().message();
    for (int text = 0; text < 40; ++text) {
      std::string piece;
      for (unsigned i = 1 + random() % 120; i > 0; --i) piece.push_back("aaabbc"[random() % 6]);
      std::vector<TokenId> ids;
      (*model)->encode(piece, ids);
      ASSERT_EQ(ids, merge_by_definition(bpe, piece)) << piece;
    }
  }
}

TEST(BpeTest, AMegabyteOfOneLetterIsMergedWithConstantStack) {
  TokenTable tokens;
  std::vector<std::pair<std::string, std::string>> pairs;
  ASSERT_TRUE(tokens.add("a", 0, "vocab").ok());
  for (std::string token = "a"; token.size() < 64; token += token) {
    ASSERT_TRUE(tokens.add(token + token, tokens.size(), "vocab").ok());
    pairs.emplace_back(token, token);
  }
  auto model = BpeModel::make(tokens, MergeList(pairs.begin(), pairs.end()), {}, BpeOptions{});
  ASSERT_TRUE(model.ok());
  std::vector<TokenId> ids;
  (*model)->encode(std::string(1 << 20, 'a'), ids);
  EXPECT_EQ(ids, std::vector<TokenId>((1 << 20) / 64, 6));
}

TEST(BpeTest, AHiddenTokenIsNeverMade) {
  TokenTable tokens;
  for (const char* token : {"a", "b", "ab"}) ASSERT_TRUE(tokens.add(token, tokens.size(), "vocab").ok());
  for (const bool ignore_merges : {false, true}) {
    BpeOptions options;
    options.ignore_merges = ignore_merges;
    auto model = BpeModel::make(tokens, {{"a", "b"}}, {false, false, true}, options);
    ASSERT_TRUE(model.ok());
    std::vector<TokenId> ids;
    (*model)->encode("ab", ids);
    EXPECT_EQ(ids, (std::vector<TokenId>{0, 1}));
  }
}

TEST(BpeTest, ByteFallbackSpellsUnknownCharactersInBytes) {
  TokenTable tokens;
  ASSERT_TRUE(tokens.add("<unk>", 0, "vocab").ok());
  ASSERT_TRUE(tokens.add("a", 1, "vocab").ok());
  ASSERT_TRUE(tokens.add("<0xC3>", 2, "vocab").ok());
  ASSERT_TRUE(tokens.add("<0xA9>", 3, "vocab").ok());
  BpeOptions options;
  options.byte_fallback = true;
  options.unk = 0;
  auto model = BpeModel::make(tokens, {}, {}, options);
  ASSERT_TRUE(model.ok());
  std::vector<TokenId> ids;
  (*model)->encode("a\u00e9\u6f22", ids);
  EXPECT_EQ(ids, (std::vector<TokenId>{1, 2, 3, 0}));
}

}  // namespace
}  // namespace quire::text
