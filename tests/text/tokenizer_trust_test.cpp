// What text may become, depending on where it comes from; ill-formed text.
#include "tests/text/tokenizer_support.h"

#include <algorithm>
#include <random>

#include "text/utf8.h"

namespace quire::text {
namespace {

using namespace testing;  // NOLINT

constexpr std::string_view kEnd = "<|endoftext|>";  // id 0, special

std::unique_ptr<Tokenizer> tokenizer_with(bool ignore_merges) {
  boost::json::object json = small_bpe();
  json["model"].as_object()["ignore_merges"] = ignore_merges;
  // Nothing cuts the special token's spelling apart before the model sees it.
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const auto next_id = static_cast<int64_t>(json["model"].as_object()["vocab"].as_object().size());
  json["added_tokens"].as_array().push_back(
      boost::json::object({{"id", next_id}, {"content", "<tool>"}, {"special", false}, {"normalized", false}}));
  return load(json);
}

class TrustTest : public ::testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<Tokenizer> tokenizer_ = tokenizer_with(GetParam());

  std::vector<TokenId> encode(std::vector<TextPiece> pieces) const { return tokenizer_->encode(pieces, false); }
  bool has_end(const std::vector<TokenId>& ids) const { return std::count(ids.begin(), ids.end(), 0) > 0; }
};

TEST_P(TrustTest, TrustedTextSpellsSpecialTokens) {
  EXPECT_EQ(encode({{std::string(kEnd), true}}), std::vector<TokenId>{0});
  EXPECT_EQ(encode({{"<|endof", true}, {"text|>", true}}), std::vector<TokenId>{0});
  EXPECT_EQ(tokenizer_->encode(kEnd, false), std::vector<TokenId>{0});
}

TEST_P(TrustTest, AUsersTextThatSpellsASpecialTokenStaysText) {
  const std::vector<TokenId> ids = encode({{std::string(kEnd), false}});
  EXPECT_GT(ids.size(), 1u);
  EXPECT_FALSE(has_end(ids));
  EXPECT_EQ(tokenizer_->decode(ids, true), kEnd);
}

TEST_P(TrustTest, ASpecialTokenNeedsTrustInEveryByteOfIt) {
  for (size_t cut = 1; cut < kEnd.size(); ++cut) {
    const std::string left(kEnd.substr(0, cut)), right(kEnd.substr(cut));
    EXPECT_FALSE(has_end(encode({{left, true}, {right, false}}))) << cut;
    EXPECT_FALSE(has_end(encode({{left, false}, {right, true}}))) << cut;
  }
  const std::vector<TokenId> ids = encode({{"a", false}, {std::string(kEnd), true}, {std::string(kEnd), false}});
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 0), 1);
}

TEST_P(TrustTest, AnUntrustedSpecialTokenHidesNoTrustedOne) {
  EXPECT_EQ(encode({{"<|endoftext|", false}, {std::string(kEnd), true}}).back(), 0);
}

TEST_P(TrustTest, AddedTokensThatAreNotSpecialAreFoundEverywhere) {
  const TokenId tool = *tokenizer_->token_to_id("<tool>");
  EXPECT_EQ(encode({{"<tool>", false}}), std::vector<TokenId>{tool});
  EXPECT_EQ(encode({{"<to", false}, {"ol>", true}}), std::vector<TokenId>{tool});
}

TEST_P(TrustTest, MergesCrossTheBoundariesOfPieces) {
  EXPECT_EQ(encode({{"th", true}, {"e", false}}), tokenizer_->encode("the", false));
}

TEST_P(TrustTest, IllFormedBytesAreReplacementCharactersAndTrustStaysWhereItWas) {
  const std::vector<TokenId> replacement = tokenizer_->encode(kReplacementCharacter, false);
  EXPECT_EQ(tokenizer_->encode("\xff", false), replacement);
  EXPECT_EQ(tokenizer_->decode(tokenizer_->encode("a\xe6\xbc", false), false), "a\xEF\xBF\xBD");
  // Overlong, surrogate, beyond the last code point: each byte is a subpart of its own.
  EXPECT_EQ(tokenizer_->decode(tokenizer_->encode("\xc0\xaf", false), false), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(tokenizer_->decode(tokenizer_->encode("\xed\xa0\x80", false), false),
            "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  const std::vector<TokenId> ids = encode({{"\xff\xff", false},
                                           {std::string(kEnd), true},
                                           {"\xe6", false},
                                           {std::string(kEnd), false},
                                           {"\xf0\x9f", true},
                                           {std::string(kEnd), true}});
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 0), 2);
}

TEST_P(TrustTest, ACharacterSplitOverPiecesIsOneCharacter) {
  EXPECT_EQ(encode({{"\xe6\xbc", false}, {"\xa2", true}}), tokenizer_->encode("\xe6\xbc\xa2", false));
}

TEST_P(TrustTest, ManyPiecesTakeTimeLinearInTheirNumber) {
  boost::json::object json = small_bpe();
  json["normalizer"] = {{"type", "NFC"}};
  const auto id = static_cast<int64_t>(json["model"].as_object()["vocab"].as_object().size());
  json["added_tokens"].as_array().push_back(
      boost::json::object({{"id", id}, {"content", "<tool>"}, {"special", false}, {"normalized", true}}));
  const auto tokenizer = load(json);
  ASSERT_NE(tokenizer, nullptr);
  std::vector<TextPiece> pieces;
  for (int i = 0; i < 300'000; ++i) {
    pieces.push_back({std::string(kEnd), true});
    pieces.push_back({i % 2 == 0 ? "e\u0301<tool>" : "<tool>", false});
  }
  const std::vector<TokenId> ids = tokenizer->encode(pieces, false);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 0), 300'000);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), static_cast<TokenId>(id)), 300'000);
}

TEST_P(TrustTest, ZeroBytesAreText) {
  const std::string text("a\0b", 3);
  EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(text, false), false), text);
}

TEST_P(TrustTest, RandomTextFromAUserNeverBecomesASpecialTokenAndComesBackUnchanged) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::vector<std::string> parts = {"<|", "endoftext", "|>", std::string(kEnd), "<tool>", " ", "the", "\n", "漢"};
  for (int round = 0; round < 300; ++round) {
    std::vector<TextPiece> pieces;
    std::string text;
    for (unsigned i = random() % 8; i > 0; --i) {
      pieces.push_back({parts[random() % parts.size()], false});
      text += pieces.back().text;
    }
    const std::vector<TokenId> ids = encode(pieces);
    EXPECT_FALSE(has_end(ids));
    EXPECT_EQ(tokenizer_->decode(ids, true), text);
  }
}

INSTANTIATE_TEST_SUITE_P(IgnoreMerges, TrustTest, ::testing::Bool());

}  // namespace
}  // namespace quire::text
