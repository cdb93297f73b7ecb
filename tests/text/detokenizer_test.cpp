#include "text/detokenizer.h"

#include <random>

#include "tests/text/tokenizer_support.h"
#include "text/utf8.h"

namespace quire::text {
namespace {

using namespace testing;  // NOLINT

class DetokenizerTest : public ::testing::Test {
 protected:
  std::unique_ptr<Tokenizer> tokenizer_ = load(small_bpe());

  std::vector<TokenId> bytes(std::string_view text) const {  // a token for each byte
    std::vector<TokenId> ids;
    for (const char byte : text) {
      for (TokenId id = 0; id < tokenizer_->vocab_size(); ++id) {
        if (tokenizer_->token_bytes(id) == std::string_view(&byte, 1)) ids.push_back(id);
      }
    }
    EXPECT_EQ(ids.size(), text.size());
    return ids;
  }
};

TEST_F(DetokenizerTest, HoldsBackACharacterUntilItIsWhole) {
  IncrementalDetokenizer detokenizer(*tokenizer_, true);
  const std::vector<TokenId> ids = bytes("a\xF0\x9F\x98\x80z");
  std::vector<std::string> given;
  for (const TokenId id : ids) given.push_back(detokenizer.append(std::vector<TokenId>{id}));
  EXPECT_EQ(given, (std::vector<std::string>{"a", "", "", "", "\xF0\x9F\x98\x80", "z"}));
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST_F(DetokenizerTest, GivesOutAReplacementOnceASequenceCannotBeCompleted) {
  IncrementalDetokenizer detokenizer(*tokenizer_, true);
  EXPECT_EQ(detokenizer.append(bytes("\xF0\x9F")), "");
  EXPECT_EQ(detokenizer.append(bytes("a")),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(detokenizer.append(bytes("\xE6")), "");
  EXPECT_EQ(detokenizer.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST_F(DetokenizerTest, SpecialTokensAreSkippedOrSpelled) {
  const std::vector<TokenId> ids = {bytes("a")[0], 0, bytes("b")[0]};
  EXPECT_EQ(IncrementalDetokenizer(*tokenizer_, true).append(ids), "ab");
  EXPECT_EQ(IncrementalDetokenizer(*tokenizer_, false).append(ids), "a<|endoftext|>b");
}

TEST_F(DetokenizerTest, PartsOfRandomIdsConcatenateToTheWholeAtEveryCut) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 400; ++round) {
    std::vector<TokenId> ids(random() % 12);
    // Mostly single bytes: ill-formed sequences of every kind. Sometimes ids that do not exist.
    for (TokenId& id : ids) {
      const auto limit = random() % 4 == 0 ? tokenizer_->vocab_size() + 3 : 257;
      id = static_cast<TokenId>(random() % static_cast<unsigned>(limit));
    }
    for (const bool skip : {false, true}) {
      const std::string whole = tokenizer_->decode(ids, skip);
      EXPECT_TRUE(is_valid_utf8(whole));
      for (size_t cut = 0; cut <= ids.size(); ++cut) {
        IncrementalDetokenizer detokenizer(*tokenizer_, skip);
        const std::span<const TokenId> all(ids);
        std::string text = detokenizer.append(all.first(cut));
        EXPECT_TRUE(is_valid_utf8(text));
        text += detokenizer.append(all.subspan(cut));
        EXPECT_EQ(text + detokenizer.finish(), whole);
      }
      IncrementalDetokenizer one_by_one(*tokenizer_, skip);
      std::string text;
      for (const TokenId id : ids) text += one_by_one.append(std::vector<TokenId>{id});
      EXPECT_EQ(text + one_by_one.finish(), whole);
    }
  }
}

}  // namespace
}  // namespace quire::text
