// SentencePiece's model files, against what SentencePiece says of them, and what such a file may get wrong.
#include "text/sentencepiece_model.h"

#include <gmock/gmock.h>

#include "tests/text/tokenizer_support.h"
#include "text/detokenizer.h"

namespace quire::text {
namespace {

using namespace testing;  // NOLINT
using ::testing::HasSubstr;

std::unique_ptr<Tokenizer> load_model(const std::string& bytes, const std::string& config = "") {
  auto made = Tokenizer::from_sentencepiece(bytes, config);
  if (!made.ok()) {
    ADD_FAILURE() << made.status().message();
    return nullptr;
  }
  return std::move(made).value();
}

std::string decode_one_by_one(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  IncrementalDetokenizer detokenizer(tokenizer, true);
  std::string text;
  for (const TokenId id : ids) text += detokenizer.append(std::vector<TokenId>{id});
  return text + detokenizer.finish();
}

class SentencePieceTest : public ::testing::TestWithParam<const char*> {};

TEST_P(SentencePieceTest, EncodesAndDecodesAsSentencePieceDoes) {
  const std::string name = std::string("sentencepiece/") + GetParam();
  const auto tokenizer = load_model(read_data(name + ".model"));
  ASSERT_NE(tokenizer, nullptr);
  for (const boost::json::value& line : read_lines(name + ".jsonl")) {
    const std::string text(line.at("text").as_string());
    const std::vector<TokenId> ids = ids_of(line.at("ids"));
    const std::vector<TokenId> some = ids_of(line.at("some"));
    // The library knows control pieces by id only: all text is as a user's.
    const std::vector<TextPiece> untrusted = {{text, false}};
    EXPECT_EQ(tokenizer->encode(untrusted, false), ids) << text;
    EXPECT_EQ(tokenizer->decode(ids, true), std::string_view(line.at("decoded").as_string())) << text;
    EXPECT_EQ(tokenizer->decode(some, true), std::string_view(line.at("some_decoded").as_string()));
    EXPECT_EQ(decode_one_by_one(*tokenizer, some), std::string_view(line.at("some_decoded").as_string()));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SentencePieceTest,
                         ::testing::Values("unigram", "unigram_bytes", "unigram_symbols", "unigram_suffix", "bpe",
                                           "bpe_bytes", "bpe_symbols", "bpe_suffix"));

TEST(SentencePieceTokenizerTest, TheConfigurationBesideItAddsTokensAndSaysHowTextsBeginAndEnd) {
  const auto tokenizer = load_model(read_data("sentencepiece/bpe.model"), R"({
    "add_bos_token": true, "add_eos_token": true, "bos_token": "<s>", "eos_token": {"content": "<end>"},
    "added_tokens_decoder": {"0": {"content": "<unk>", "special": true}, "200": {"content": "<end>", "special": true},
                             "201": {"content": "<call>", "special": false}}})");
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_ids(), std::vector<TokenId>{200});
  const std::vector<TokenId> ids = tokenizer->encode("a<call><end>", true);
  EXPECT_EQ(ids.front(), 1);
  EXPECT_EQ(std::vector<TokenId>(ids.end() - 3, ids.end()), (std::vector<TokenId>{201, 200, 200}));
}

TEST(SentencePieceTokenizerTest, ControlPiecesAreFoundInTrustedTextOnly) {
  const auto tokenizer = load_model(read_data("sentencepiece/bpe_bytes.model"));
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->encode("</s>", false), std::vector<TokenId>{2});
  const std::vector<TextPiece> user = {{"</s>", false}};
  EXPECT_THAT(tokenizer->encode(user, false), ::testing::Not(::testing::Contains(2)));
}

// What a token adds to a text is worked out in one go for all, and must be what it adds to each.
TEST(SentencePieceTokenizerTest, ATokensBytesAreWhatItAddsBetweenOthers) {
  for (const char* name : {"bpe_bytes", "unigram_suffix", "bpe_symbols"}) {
    const auto tokenizer = load_model(read_data(std::string("sentencepiece/") + name + ".model"));
    ASSERT_NE(tokenizer, nullptr);
    const std::optional<TokenId> e = tokenizer->token_to_id("e");
    ASSERT_TRUE(e) << name;
    const TokenId letter = *e;
    const std::string alone = tokenizer->decode(std::vector<TokenId>{letter, letter}, false);
    for (TokenId id = 0; id < tokenizer->vocab_size(); ++id) {
      const std::string spelling = tokenizer->id_to_token(id).value_or("");
      if (spelling.starts_with("<0x")) {
        EXPECT_EQ(tokenizer->token_bytes(id).size(), 1u) << spelling;
        continue;
      }
      const std::string between = tokenizer->decode(std::vector<TokenId>{letter, id, letter}, false);
      EXPECT_EQ(between.size(), alone.size() + tokenizer->token_bytes(id).size()) << spelling;
      EXPECT_NE(between.find(tokenizer->token_bytes(id)), std::string::npos) << spelling;
    }
  }
}

TEST(SentencePieceTokenizerTest, AModelAloneIsEnoughAndATokenizerJsonComesFirst) {
  TextSource source;
  source.sentencepiece_model = read_data("sentencepiece/unigram.model");
  const auto alone = Tokenizer::from_source(source);
  ASSERT_TRUE(alone.ok()) << alone.status().message();
  EXPECT_THAT((*alone)->description(), HasSubstr("sentencepiece unigram"));
  source.tokenizer_json = read_data("small_bpe.json");
  const auto json = Tokenizer::from_source(source);
  ASSERT_TRUE(json.ok()) << json.status().message();
  EXPECT_THAT((*json)->description(), HasSubstr("byte level"));
}

std::string field(int number, int kind, const std::string& content) {
  return std::string(1, static_cast<char>(number << 3 | kind)) + content;
}
std::string bytes_field(int number, const std::string& content) {
  return field(number, 2, std::string(1, static_cast<char>(content.size())) + content);
}
std::string piece(const std::string& text, const std::string& score, int type) {
  return bytes_field(1,
                     bytes_field(1, text) + field(2, 5, score) + field(3, 0, std::string(1, static_cast<char>(type))));
}
const std::string kZero(4, '\0');
const std::string kUnknown = piece("<unk>", kZero, 2);

struct BadModel {
  const char* name;
  std::string bytes;
  const char* message;
};

class BadSentencePieceTest : public ::testing::TestWithParam<BadModel> {};

TEST_P(BadSentencePieceTest, IsRefusedByName) {
  const auto made = Tokenizer::from_sentencepiece(GetParam().bytes, "");
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.status().message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, BadSentencePieceTest,
    ::testing::Values(
        BadModel{"no_pieces", bytes_field(2, ""), "pieces: none"},
        BadModel{"text", "this is no model", "no SentencePiece model"},
        BadModel{"length_past_the_end", "\x0A\x7Fxy", "127 bytes are announced"},
        BadModel{"endless_number", std::string(20, '\xff'), "longer than 64 bits"},
        BadModel{"not_a_number", kUnknown + piece("a", std::string("\x00\x00\xC0\x7F", 4), 1), "pieces[1].score"},
        BadModel{"infinite", kUnknown + piece("a", std::string("\x00\x00\x80\xFF", 4), 1), "pieces[1].score"},
        BadModel{"ill_formed", kUnknown + piece("\xff", kZero, 1), "pieces[1].piece"},
        BadModel{"no_such_type", kUnknown + piece("a", kZero, 9), "pieces[1].type"},
        BadModel{"twice", kUnknown + piece("a", kZero, 1) + piece("a", kZero, 1), "both id 1 and id 2"},
        BadModel{"no_unknown", piece("a", kZero, 1), "of the type unknown"},
        BadModel{"no_byte_pieces", kUnknown + bytes_field(2, std::string("\x98\x02\x01", 3)), "no piece <0x00>"},
        BadModel{"word_model", kUnknown + bytes_field(2, field(3, 0, "\x03")), "word models are not supported"},
        BadModel{"no_such_model", kUnknown + bytes_field(2, field(3, 0, "\x09")), "trainer_spec.model_type"},
        BadModel{"charsmap", kUnknown + bytes_field(3, bytes_field(2, "\x7f\x01\x01\x01")), "precompiled_charsmap"},
        BadModel{"denormalizer", kUnknown + bytes_field(5, bytes_field(2, "x")), "denormalizer_spec"}),
    [](const auto& test) { return test.param.name; });

TEST(SentencePieceModelTest, TruncationAtAnyByteIsAnErrorOrAShorterModelAndNeverACrash) {
  const std::string whole = read_data("sentencepiece/unigram_symbols.model");
  for (size_t length = 0; length < whole.size(); ++length) {
    const auto made = Tokenizer::from_sentencepiece(whole.substr(0, length), "");
    if (made.ok()) {
      EXPECT_LE((*made)->vocab_size(), 200) << length;
    }
  }
}

TEST(SentencePieceModelTest, AnyByteMayBeAnyOther) {
  const std::string whole = read_data("sentencepiece/bpe_symbols.model");
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
    const auto made = Tokenizer::from_sentencepiece(changed, "");
    if (made.ok()) (*made)->decode((*made)->encode("The fox\u0301 \u3000A\u00e9<tool>", true), false);
  }
}

}  // namespace
}  // namespace quire::text
