#include <algorithm>

#include <gmock/gmock.h>

#include "tests/text/tokenizer_support.h"

namespace quire::text {
namespace {

using namespace testing;  // NOLINT
using ::testing::HasSubstr;

// What a GGUF file would say about gpt2_style_bpe.json.
Vocabulary gpt2_vocabulary() {
  const boost::json::value json = boost::json::parse(read_data("gpt2_style_bpe.json"));
  const auto& vocab = json.at("model").at("vocab").as_object();
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "gpt-2";
  vocabulary.tokens.resize(vocab.size());
  for (const auto& [token, id] : vocab) vocabulary.tokens[static_cast<size_t>(id.as_int64())] = token;
  for (const auto& pair : json.at("model").at("merges").as_array()) {
    vocabulary.merges.push_back(std::string(pair.at(0).as_string()) + " " + std::string(pair.at(1).as_string()));
  }
  vocabulary.token_types.assign(vocab.size(), VocabularyTokenType::kNormal);
  vocabulary.token_types[0] = VocabularyTokenType::kControl;
  return vocabulary;
}

std::unique_ptr<Tokenizer> make(Vocabulary vocabulary) {
  auto made = Tokenizer::from_vocabulary(vocabulary);
  if (!made.ok()) {
    ADD_FAILURE() << made.status().message();
    return nullptr;
  }
  return std::move(made).value();
}

TEST(GgufTokenizerTest, EncodesAsTheTokenizerJsonItCameFrom) {
  const auto tokenizer = make(gpt2_vocabulary());
  ASSERT_NE(tokenizer, nullptr);
  for (const boost::json::value& line : read_lines("gpt2_style_bpe.jsonl")) {
    const std::vector<TokenId> ids = ids_of(line.at("ids"));
    EXPECT_EQ(tokenizer->encode(line.at("text").as_string(), false), ids);
    EXPECT_EQ(tokenizer->decode(ids, true), std::string_view(line.at("decoded_clean").as_string()));
  }
}

TEST(GgufTokenizerTest, ControlTokensAreSpecialAndUserDefinedOnesAreNot) {
  Vocabulary vocabulary = gpt2_vocabulary();
  vocabulary.tokens.push_back("<tool>");
  vocabulary.token_types.push_back(VocabularyTokenType::kUserDefined);
  const auto tool = static_cast<TokenId>(vocabulary.tokens.size() - 1);
  const auto tokenizer = make(vocabulary);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_TRUE(tokenizer->is_special(0));
  EXPECT_FALSE(tokenizer->is_special(tool));
  const std::vector<TextPiece> user = {{"<tool><|endoftext|>", false}};
  const std::vector<TokenId> ids = tokenizer->encode(user, false);
  EXPECT_EQ(ids[0], tool);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 0), 0);
}

TEST(GgufTokenizerTest, BosAndEosAreAddedWhereTheFileSaysSo) {
  Vocabulary vocabulary = gpt2_vocabulary();
  vocabulary.bos_id = 5;
  vocabulary.eos_id = 6;
  vocabulary.eot_id = 7;
  vocabulary.add_bos = true;
  vocabulary.add_eos = true;
  const auto tokenizer = make(vocabulary);
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<TokenId> plain = tokenizer->encode("hello", false);
  std::vector<TokenId> wrapped = {5};
  wrapped.insert(wrapped.end(), plain.begin(), plain.end());
  wrapped.push_back(6);
  EXPECT_EQ(tokenizer->encode("hello", true), wrapped);
  EXPECT_EQ(tokenizer->bos_id(), 5);
  EXPECT_EQ(tokenizer->eos_ids(), (std::vector<TokenId>{6, 7}));
}

TEST(GgufTokenizerTest, EveryKnownPreTokenizerLosesNoText) {
  const std::string text =
      "Hello  World's 12345\r\n\r\n x=y+1; 漢字かな Привет ünï 😀 \t $5.00 (don't) camelCase HTTPServer e\u0301";
  for (const char* pre :
       {"",          "default",   "gpt-2",      "smollm",         "llama-bpe",    "llama3",
        "llama-v3",  "qwen2",     "qwen35",     "deepseek-v3",    "starcoder",    "refact",
        "command-r", "olmo",      "dbrx",       "deepseek-coder", "gpt-4o",       "falcon",
        "falcon3",   "tekken",    "bailingmoe", "seed-coder",     "deepseek-llm", "spark2_5",
        "youtu",     "jais-2",    "bloom",      "viking",         "exaone-moe",   "chameleon",
        "tiny_aya",  "superbpe",  "kimi-k2",    "ufakzeka",       "afmoe",        "laguna",
        "minicpm5",  "poro-chat", "glm5",       "roberta-bpe",    "mellum2",      "granite-embed-multi-97m"}) {
    Vocabulary vocabulary = gpt2_vocabulary();
    vocabulary.pre = pre;
    const auto tokenizer = make(vocabulary);
    ASSERT_NE(tokenizer, nullptr) << pre;
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, false), false), text) << pre;
  }
}

TEST(GgufTokenizerTest, DigitsArePiecesOfTheirOwnWhereTheFamilySaysSo) {
  Vocabulary vocabulary = gpt2_vocabulary();
  ASSERT_EQ(std::count(vocabulary.merges.begin(), vocabulary.merges.end(), "1 2"), 1);
  const auto count = [&vocabulary](const char* pre) {
    vocabulary.pre = pre;
    return make(vocabulary)->encode("12", false).size();
  };
  EXPECT_EQ(count("gpt-2"), 1u);
  EXPECT_EQ(count("llama-bpe"), 1u);
  EXPECT_EQ(count("starcoder"), 2u);
  EXPECT_EQ(count("qwen2"), 2u);
}

struct BadVocabulary {
  const char* name;
  void (*change)(Vocabulary&);
  StatusCode code;
  const char* message;
};

constexpr BadVocabulary kBadVocabularies[] = {
    {"unknown_model", [](Vocabulary& v) { v.model = "rwkv"; }, StatusCode::kUnimplemented, "\"rwkv\""},
    {"no_scores", [](Vocabulary& v) { v.model = "llama"; }, StatusCode::kInvalidArgument, "tokenizer.ggml.scores"},
    {"no_unigram_scores", [](Vocabulary& v) { v.model = "t5"; }, StatusCode::kInvalidArgument, "tokenizer.ggml.scores"},
    {"charsmap",
     [](Vocabulary& v) {
       v.model = "t5";
       v.scores.assign(v.tokens.size(), -1.0f);
       v.precompiled_charsmap = "\xff\xff";
     },
     StatusCode::kInvalidArgument, "tokenizer.ggml.precompiled_charsmap"},
    {"some_byte_tokens",
     [](Vocabulary& v) {
       v.model = "llama";
       v.scores.assign(v.tokens.size(), -1.0f);
       v.tokens[9] = "<0x41>";
     },
     StatusCode::kInvalidArgument, "1 of the 256 byte tokens"},
    {"unknown_pre", [](Vocabulary& v) { v.pre = "nobody"; }, StatusCode::kUnimplemented, "\"nobody\""},
    {"no_tokens", [](Vocabulary& v) { v.tokens.clear(); }, StatusCode::kInvalidArgument, "tokenizer.ggml.tokens"},
    {"token_twice", [](Vocabulary& v) { v.tokens[9] = v.tokens[8]; }, StatusCode::kInvalidArgument,
     "both id 8 and id 9"},
    {"ill_formed", [](Vocabulary& v) { v.tokens[9] = "\xff"; }, StatusCode::kInvalidArgument, "tokens[9]"},
    {"types", [](Vocabulary& v) { v.token_types.pop_back(); }, StatusCode::kInvalidArgument, "token_type"},
    {"merge_of_one", [](Vocabulary& v) { v.merges[3] = "abc"; }, StatusCode::kInvalidArgument, "merges[3]"},
    {"empty_merge", [](Vocabulary& v) { v.merges[3] = ""; }, StatusCode::kInvalidArgument, "merges[3]"},
    {"merge_of_unknown", [](Vocabulary& v) { v.merges[3] = "a qqqq"; }, StatusCode::kInvalidArgument, "qqqq"},
    {"bos", [](Vocabulary& v) { v.bos_id = 99999; }, StatusCode::kInvalidArgument, "bos_token_id"},
    {"eos", [](Vocabulary& v) { v.eos_id = -2; }, StatusCode::kInvalidArgument, "eos_token_id"},
    {"add_bos", [](Vocabulary& v) { v.add_bos = true; }, StatusCode::kInvalidArgument, "add_bos_token"},
    {"add_eos", [](Vocabulary& v) { v.add_eos = true; }, StatusCode::kInvalidArgument, "add_eos_token"},
};

class BadVocabularyTest : public ::testing::TestWithParam<BadVocabulary> {};

TEST_P(BadVocabularyTest, IsRefusedByName) {
  Vocabulary vocabulary = gpt2_vocabulary();
  GetParam().change(vocabulary);
  const auto made = Tokenizer::from_vocabulary(vocabulary);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), GetParam().code);
  EXPECT_THAT(made.status().message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Fields, BadVocabularyTest, ::testing::ValuesIn(kBadVocabularies),
                         [](const auto& test) { return test.param.name; });

TEST(TokenizerSourceTest, TheVocabularyComesFirstThenTheTokenizerJsonAndNeitherIsAnError) {
  TextSource source;
  const auto none = Tokenizer::from_source(source);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), StatusCode::kNotFound);
  EXPECT_NE(none.status().message().find("--tokenizer"), std::string::npos) << none.status().message();

  source.tokenizer_json = read_data("small_bpe.json");
  const auto from_json = Tokenizer::from_source(source);
  ASSERT_TRUE(from_json.ok()) << from_json.status().message();

  source.vocabulary.emplace();
  source.vocabulary->model = "unheard-of";
  const auto from_vocabulary = Tokenizer::from_source(source);
  ASSERT_FALSE(from_vocabulary.ok());
  EXPECT_NE(from_vocabulary.status().message().find("unheard-of"), std::string::npos);
}

}  // namespace
}  // namespace quire::text
