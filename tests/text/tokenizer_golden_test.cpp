// Encodings and decodings that Hugging Face's tokenizers made.
#include "tests/text/tokenizer_support.h"
#include "text/detokenizer.h"

namespace quire::text {
namespace {

using namespace testing;  // NOLINT

class GoldenTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenTest, EveryLineIsEncodedAndDecodedAsTheReferenceDid) {
  const std::string name = GetParam();
  const auto tokenizer = load(read_data(name + ".json"));
  ASSERT_NE(tokenizer, nullptr);
  for (const boost::json::value& line : read_lines(name + ".jsonl")) {
    const std::string text(line.at("text").as_string());
    const std::vector<TokenId> ids = ids_of(line.at("ids"));
    EXPECT_EQ(tokenizer->encode(text, false), ids) << text;
    EXPECT_EQ(tokenizer->decode(ids, false), std::string_view(line.at("decoded").as_string())) << text;
    EXPECT_EQ(tokenizer->decode(ids, true), std::string_view(line.at("decoded_clean").as_string())) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, GoldenTest,
                         ::testing::Values("gpt2_style_bpe", "llama3_style_bpe", "qwen_style_bpe_nfc",
                                           "llama2_style_spm_bpe", "unigram_nfkc"));

// Each line of variants.jsonl changes small_bpe.json: pre-tokenizers, split behaviors, added tokens, templates.
TEST(TokenizerVariantsTest, EveryVariantEncodesAsTheReferenceDid) {
  const boost::json::object base = small_bpe();
  for (const boost::json::value& variant : read_lines("variants.jsonl")) {
    boost::json::object json = base;
    for (const auto& token : variant.at("added_tokens").as_array()) json["added_tokens"].as_array().push_back(token);
    json["normalizer"] = variant.at("normalizer");
    json["pre_tokenizer"] = variant.at("pre_tokenizer");
    json["post_processor"] = variant.at("post_processor");
    for (const auto& [key, value] : variant.at("model").as_object()) json["model"].as_object()[key] = value;
    SCOPED_TRACE(std::string(variant.at("name").as_string()));
    const auto tokenizer = load(json);
    ASSERT_NE(tokenizer, nullptr);
    for (const auto& entry : variant.at("cases").as_array()) {
      const auto& fields = entry.as_array();
      const std::string text(fields[0].as_string());
      EXPECT_EQ(tokenizer->encode(text, false), ids_of(fields[1])) << boost::json::serialize(fields[0]);
      if (fields.size() > 2) {
        EXPECT_EQ(tokenizer->encode(text, true), ids_of(fields[2])) << boost::json::serialize(fields[0]);
      }
    }
  }
}

std::string decode_one_by_one(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip_special_tokens) {
  IncrementalDetokenizer detokenizer(tokenizer, skip_special_tokens);
  std::string text;
  for (const TokenId id : ids) text += detokenizer.append(std::vector<TokenId>{id});
  return text + detokenizer.finish();
}

// configurations.jsonl: random models, normalizers, pre-tokenizers, decoders, added tokens and post-processors.
TEST(TokenizerConfigurationsTest, EveryConfigurationEncodesAndDecodesAsTheReferenceDid) {
  for (const boost::json::value& line : read_lines("configurations.jsonl")) {
    const std::string json = boost::json::serialize(line.at("tokenizer"));
    const auto tokenizer = load(json);
    ASSERT_NE(tokenizer, nullptr) << json.substr(0, 3000);
    boost::json::object brief = line.at("tokenizer").as_object();
    brief.erase("model");
    SCOPED_TRACE(boost::json::serialize(brief));
    for (const boost::json::value& entry : line.at("cases").as_array()) {
      const std::string text(entry.at("text").as_string());
      const std::vector<TokenId> some = ids_of(entry.at("some"));
      EXPECT_EQ(tokenizer->encode(text, false), ids_of(entry.at("ids"))) << text;
      EXPECT_EQ(tokenizer->encode(text, true), ids_of(entry.at("wrapped"))) << text;
      EXPECT_EQ(tokenizer->decode(some, false), std::string_view(entry.at("decoded").as_string()));
      EXPECT_EQ(tokenizer->decode(some, true), std::string_view(entry.at("clean").as_string()));
      EXPECT_EQ(decode_one_by_one(*tokenizer, some, false), std::string_view(entry.at("decoded").as_string()));
      EXPECT_EQ(decode_one_by_one(*tokenizer, some, true), std::string_view(entry.at("clean").as_string()));
    }
  }
}

TEST(TokenizerGoldenTest, MergesAsStringsMeanTheSameAsMergesAsPairs) {
  boost::json::object json = boost::json::parse(read_data("gpt2_style_bpe.json")).as_object();
  const auto pairs = load(json);
  boost::json::array strings;
  strings.emplace_back("#version: 0.2");
  for (const auto& pair : json["model"].as_object()["merges"].as_array()) {
    strings.emplace_back(std::string(pair.as_array()[0].as_string()) + " " +
                         std::string(pair.as_array()[1].as_string()));
  }
  json["model"].as_object()["merges"] = strings;
  const auto spelled = load(json);
  ASSERT_TRUE(pairs != nullptr && spelled != nullptr);
  for (const boost::json::value& line : read_lines("gpt2_style_bpe.jsonl")) {
    EXPECT_EQ(spelled->encode(line.at("text").as_string(), false), pairs->encode(line.at("text").as_string(), false));
  }
}

}  // namespace
}  // namespace quire::text
