// The merging itself against the definition: again and again the best pair, leftmost first.
#include "text/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>
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
      // What a piece becomes is remembered: the second time it is looked up.
      for (int time = 0; time < 2; ++time) {
        std::vector<TokenId> ids;
        (*model)->encode(piece, ids);
        ASSERT_EQ(ids, merge_by_definition(bpe, piece)) << piece;
      }
    }
    for (TokenId id = 0; id < bpe.tokens.size(); ++id) {
      const std::string& piece = *bpe.tokens.find(id);
      for (int time = 0; time < 2; ++time) {
        std::vector<TokenId> ids;
        (*model)->encode(piece, ids);
        ASSERT_EQ(ids, merge_by_definition(bpe, piece)) << piece;
      }
    }
  }
}

struct RandomScores {
  TokenTable tokens;
  std::vector<ScoredToken> scored;
};

// Letters, strings of them and of letters that are no tokens, few different scores.
RandomScores make_random_scores(std::mt19937& random, int num_tokens) {
  RandomScores made;
  const auto add = [&](const std::string& token, float score) {
    if (made.tokens.find(token)) return;
    const auto id = static_cast<TokenId>(made.tokens.size());
    EXPECT_TRUE(made.tokens.add(token, id, "vocab").ok());
    made.scored.push_back({id, score});
  };
  EXPECT_TRUE(made.tokens.add("<unk>", 0, "vocab").ok());
  for (const char* letter : {"a", "b", "\u00e9"}) add(letter, -1);
  for (int i = 0; i < num_tokens; ++i) {
    std::string token;
    for (unsigned length = 2 + random() % 4; length > 0; --length) {
      constexpr const char* kLetters[] = {"a", "b", "\u00e9", "c", "\u6f22"};
      token += kLetters[random() % 5];
    }
    add(token, -static_cast<float>(random() % 12));
  }
  return made;
}

std::vector<TokenId> merge_scores_by_definition(const RandomScores& made, const std::vector<std::string>& characters) {
  std::map<std::string, float> scores;
  for (const ScoredToken& token : made.scored) scores.emplace(*made.tokens.find(token.id), token.score);
  std::vector<std::string> symbols = characters;
  while (true) {
    std::optional<size_t> best;
    float best_score = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto score = scores.find(symbols[i] + symbols[i + 1]);
      if (score == scores.end() || (best && score->second <= best_score)) continue;
      best = i;
      best_score = score->second;
    }
    if (!best) break;
    symbols[*best] += symbols[*best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(*best) + 1);
  }
  std::vector<TokenId> ids;
  for (const std::string& symbol : symbols) {
    const TokenId id = made.tokens.find(symbol).value_or(0);
    if (id != 0 || ids.empty() || ids.back() != 0) ids.push_back(id);
  }
  return ids;
}

TEST(BpeTest, RandomScoresMergeWhatIsATokenTogetherBestScoreFirst) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    const RandomScores made = make_random_scores(random, 60);
    BpeOptions options;
    options.unk = 0;
    options.fuse_unk = true;
    auto model = BpeModel::make_by_scores(made.tokens, made.scored, options);
    ASSERT_TRUE(model.ok()) << model.status().message();
    for (int text = 0; text < 60; ++text) {
      std::vector<std::string> characters;
      std::string piece;
      for (unsigned i = 1 + random() % 40; i > 0; --i) {
        constexpr const char* kLetters[] = {"a", "a", "b", "\u00e9", "c", "\u6f22"};
        piece += characters.emplace_back(kLetters[random() % 6]);
      }
      for (int time = 0; time < 2; ++time) {
        std::vector<TokenId> ids;
        (*model)->encode(piece, ids);
        ASSERT_EQ(ids, merge_scores_by_definition(made, characters)) << piece;
      }
    }
  }
}

TEST(BpeTest, TokensThatAllBeginAndEndWithEachOtherAreLoaded) {
  TokenTable tokens;
  std::vector<ScoredToken> scored;
  constexpr TokenId kLongest = 2000;
  for (TokenId id = 0; id < kLongest; ++id) {
    ASSERT_TRUE(tokens.add(std::string(static_cast<size_t>(id) + 1, 'a'), id, "vocab").ok());
    scored.push_back({id, -static_cast<float>(id)});
  }
  auto model = BpeModel::make_by_scores(tokens, scored, {});
  ASSERT_TRUE(model.ok());
  std::vector<TokenId> ids;
  (*model)->encode(std::string(64, 'a'), ids);
  EXPECT_EQ(ids, std::vector<TokenId>{63});
}

TEST(BpeTest, ManyThreadsMayMeetAPieceForTheFirstTimeAtOnce) {
  std::mt19937 random(7);
  const RandomBpe bpe = make_random(random, 200);
  auto model = BpeModel::make(bpe.tokens, MergeList(bpe.merges.begin(), bpe.merges.end()), {}, BpeOptions{});
  ASSERT_TRUE(model.ok());
  std::vector<std::vector<TokenId>> found(4);
  std::vector<std::thread> threads;
  for (std::vector<TokenId>& ids : found) {
    threads.emplace_back([&] {
      for (TokenId id = 0; id < bpe.tokens.size(); ++id) (*model)->encode(*bpe.tokens.find(id), ids);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<TokenId>& ids : found) EXPECT_EQ(ids, found[0]);
}

TEST(SpellingMapTest, IsAMapOfWhatWasAddedFirst) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  SpellingMap map;
  std::map<std::string, TokenId> known;
  for (TokenId id = 0; id < 5000; ++id) {
    std::string spelling;
    for (unsigned length = random() % 6; length > 0; --length) spelling.push_back("ab\0c"[random() % 4]);
    EXPECT_EQ(map.add(spelling, id), known.emplace(spelling, id).second);
  }
  EXPECT_EQ(map.size(), known.size());
  for (const auto& [spelling, id] : known) EXPECT_EQ(map.id_of(spelling), id);
  EXPECT_EQ(map.id_of("d"), kNoToken);
}

TEST(TokenTableTest, AnIdAndASpellingAreGivenOnce) {
  TokenTable tokens;
  for (TokenId id = 0; id < 300; ++id) ASSERT_TRUE(tokens.add(fmt::format("t{}", id), 2 * id, "vocab").ok());
  EXPECT_EQ(tokens.count(), 300);
  EXPECT_EQ(tokens.size(), 599);
  EXPECT_EQ(tokens.find("t150"), 300);
  EXPECT_EQ(*tokens.find(300), "t150");
  EXPECT_EQ(tokens.find(301), nullptr);
  EXPECT_NE(tokens.add("t7", 1001, "vocab").message().find("both id 14 and id 1001"), std::string::npos);
  EXPECT_NE(tokens.add("new", 14, "vocab").message().find("given to both"), std::string::npos);
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
