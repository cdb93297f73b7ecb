// What a tokenizer.json may get wrong: each error names the field.
#include "tests/text/tokenizer_support.h"

#include <functional>

#include <gmock/gmock.h>

namespace quire::text {
namespace {

using namespace testing;  // NOLINT
using boost::json::array;
using boost::json::object;
using boost::json::value;
using ::testing::HasSubstr;

struct BadCase {
  const char* name;
  std::function<void(object&)> change;
  StatusCode code;
  const char* message;
};

object& model(object& json) {
  return json["model"].as_object();
}
object& vocab(object& json) {
  return model(json)["vocab"].as_object();
}
value nested_splits(int depth) {
  value inner = {{"type", "Sequence"}, {"pretokenizers", array()}};
  for (int i = 0; i < depth; ++i) inner = {{"type", "Sequence"}, {"pretokenizers", array({inner})}};
  return inner;
}
value regex_split(const char* regex) {
  return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
}

constexpr auto kInvalid = StatusCode::kInvalidArgument;
constexpr auto kUnbuilt = StatusCode::kUnimplemented;

const BadCase kBadCases[] = {
    {"no_model", [](object& j) { j.erase("model"); }, kInvalid, "model"},
    {"model_is_a_list", [](object& j) { j["model"] = array(); }, kInvalid, "model"},
    {"unknown_model", [](object& j) { model(j)["type"] = "Syllables"; }, kUnbuilt, "Syllables"},
    {"wordpiece_without_unknown", [](object& j) { model(j)["type"] = "WordPiece"; }, kInvalid, "model.unk_token"},
    {"unigram_of_a_map", [](object& j) { model(j)["type"] = "Unigram"; }, kInvalid, "model.vocab"},
    {"unigram_pair",
     [](object& j) {
       j["model"] = {{"type", "Unigram"}, {"vocab", array({array({"a"})})}};
     },
     kInvalid, "model.vocab[0]"},
    {"unigram_score_is_text",
     [](object& j) {
       j["model"] = {{"type", "Unigram"}, {"vocab", array({array({"a", "b"})})}};
     },
     kInvalid, "model.vocab[0]"},
    {"unigram_huge_score",
     [](object& j) {
       j["added_tokens"] = array();
       j["model"] = {{"type", "Unigram"}, {"vocab", array({array({"a", 1e300})})}};
     },
     kInvalid, "1e+300"},
    {"unigram_unknown_id",
     [](object& j) {
       j["added_tokens"] = array();
       j["model"] = {{"type", "Unigram"}, {"unk_id", 7}, {"vocab", array({array({"a", -1.0})})}};
     },
     kInvalid, "model.unk_id"},
    {"unigram_token_twice",
     [](object& j) {
       j["model"] = {{"type", "Unigram"}, {"vocab", array({array({"a", -1.0}), array({"a", -2.0})})}};
     },
     kInvalid, "both id 0 and id 1"},
    {"no_vocab", [](object& j) { model(j).erase("vocab"); }, kInvalid, "model.vocab"},
    {"vocab_is_a_list", [](object& j) { model(j)["vocab"] = array(); }, kInvalid, "model.vocab"},
    {"negative_id", [](object& j) { vocab(j)["zz"] = -1; }, kInvalid, "-1"},
    {"huge_id", [](object& j) { vocab(j)["zz"] = 1LL << 40; }, kInvalid, "1099511627776"},
    {"id_past_the_bound", [](object& j) { vocab(j)["zz"] = 1 << 24; }, kInvalid, "16777216"},
    {"fractional_id", [](object& j) { vocab(j)["zz"] = 1.5; }, kInvalid, "zz"},
    {"id_as_text", [](object& j) { vocab(j)["zz"] = "1"; }, kInvalid, "zz"},
    {"unsigned_id", [](object& j) { vocab(j)["zz"] = UINT64_MAX; }, kInvalid, "zz"},
    {"id_given_twice", [](object& j) { vocab(j)["zz"] = 5; }, kInvalid, "id 5 is given to both"},
    {"hole", [](object& j) { vocab(j)["zz"] = 9000000; }, kInvalid, "9000000"},
    {"no_merges", [](object& j) { model(j).erase("merges"); }, kInvalid, "model.merges"},
    {"merge_of_unknown",
     [](object& j) {
       model(j)["merges"].as_array().push_back(array({"qq", "a"}));
     },
     kInvalid, "\"qq\" is not in the vocabulary"},
    {"merge_into_unknown",
     [](object& j) {
       model(j)["merges"].as_array().push_back(array({"z", "q"}));
     },
     kInvalid, "\"zq\" is not in the vocabulary"},
    {"merge_of_three",
     [](object& j) {
       model(j)["merges"].as_array().push_back(array({"a", "b", "c"}));
     },
     kInvalid, "model.merges[300]"},
    {"merge_of_one_word", [](object& j) { model(j)["merges"].as_array().emplace_back("ab"); }, kInvalid,
     "model.merges[300]"},
    {"merge_of_three_words", [](object& j) { model(j)["merges"].as_array().emplace_back("a b c"); }, kInvalid,
     "model.merges[300]"},
    {"merge_is_a_number", [](object& j) { model(j)["merges"].as_array().emplace_back(3); }, kInvalid,
     "model.merges[300]"},
    {"dropout", [](object& j) { model(j)["dropout"] = 0.1; }, kUnbuilt, "model.dropout"},
    {"subword_prefix_is_a_number", [](object& j) { model(j)["continuing_subword_prefix"] = 2; }, kInvalid,
     "model.continuing_subword_prefix"},
    {"ignore_merges_is_text", [](object& j) { model(j)["ignore_merges"] = "yes"; }, kInvalid, "model.ignore_merges"},
    {"unknown_unk", [](object& j) { model(j)["unk_token"] = "<nope>"; }, kInvalid, "model.unk_token"},
    {"normalizer",
     [](object& j) {
       j["normalizer"] = {{"type", "Sideways"}};
     },
     kUnbuilt, "Sideways"},
    {"charsmap_is_no_base64",
     [](object& j) {
       j["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "a*=="}};
     },
     kInvalid, "normalizer.precompiled_charsmap"},
    {"charsmap_longer_than_it_is",
     [](object& j) {
       j["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "////f0FB"}};
     },
     kInvalid, "normalizer.precompiled_charsmap"},
    {"replace_without_content",
     [](object& j) {
       j["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}};
     },
     kInvalid, "normalizer.content"},
    {"normalizer_without_type", [](object& j) { j["normalizer"] = object(); }, kInvalid, "normalizer.type"},
    {"pre_tokenizer",
     [](object& j) {
       j["pre_tokenizer"] = {{"type", "Syllables"}};
     },
     kUnbuilt, "Syllables"},
    {"nested_pre_tokenizer",
     [](object& j) {
       j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", array({object({{"type", "X"}})})}};
     },
     kUnbuilt, "pre_tokenizer.pretokenizers[0]"},
    {"metaspace_of_two_characters",
     [](object& j) {
       j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "__"}};
     },
     kInvalid, "pre_tokenizer.replacement"},
    {"metaspace_scheme",
     [](object& j) {
       j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "often"}};
     },
     kInvalid, "often"},
    {"pieces_of_no_length",
     [](object& j) {
       j["pre_tokenizer"] = {{"type", "FixedLength"}, {"length", 0}};
     },
     kInvalid, "pre_tokenizer.length"},
    {"split_without_pattern",
     [](object& j) {
       j["pre_tokenizer"] = {{"type", "Split"}};
     },
     kInvalid, "pattern"},
    {"split_behavior",
     [](object& j) {
       j["pre_tokenizer"] = regex_split("a");
       j["pre_tokenizer"].as_object()["behavior"] = "Sideways";
     },
     kInvalid, "Sideways"},
    {"bad_regex", [](object& j) { j["pre_tokenizer"] = regex_split("(a"); }, kInvalid, "pre_tokenizer.pattern.Regex"},
    {"bad_class", [](object& j) { j["pre_tokenizer"] = regex_split("[a"); }, kInvalid, "class"},
    {"bad_property", [](object& j) { j["pre_tokenizer"] = regex_split("\\p{Nope}"); }, kInvalid, "compile"},
    {"single_byte_escape", [](object& j) { j["pre_tokenizer"] = regex_split("\\C"); }, kInvalid, "compile"},
    {"class_intersection", [](object& j) { j["pre_tokenizer"] = regex_split("[a-z&&[^b]]"); }, kUnbuilt,
     "intersection"},
    {"nested_class", [](object& j) { j["pre_tokenizer"] = regex_split("[a[^bc]]"); }, kUnbuilt, "class inside"},
    {"nested_classes", [](object& j) { j["pre_tokenizer"] = regex_split(std::string(60'000, '[').c_str()); }, kUnbuilt,
     "inside one another"},
    {"variable_lookbehind", [](object& j) { j["pre_tokenizer"] = regex_split("(?<=a+)b"); }, kInvalid, "compile"},
    {"nested_groups",
     [](object& j) { j["pre_tokenizer"] = regex_split((std::string(2000, '(') + std::string(2000, ')')).c_str()); },
     kInvalid, "compile"},
    {"huge_regex", [](object& j) { j["pre_tokenizer"] = regex_split(std::string(70000, 'a').c_str()); }, kInvalid,
     "70000"},
    {"post_processor",
     [](object& j) {
       j["post_processor"] = {{"type", "Odd"}};
     },
     kUnbuilt, "Odd"},
    {"template_names_nobody",
     [](object& j) {
       j["post_processor"] = {
           {"type", "TemplateProcessing"},
           {"single", array({object({{"SpecialToken", {{"id", "<s>"}}}}), object({{"Sequence", object()}})})},
           {"special_tokens", object()}};
     },
     kInvalid, "<s>"},
    {"template_id_out_of_range",
     [](object& j) {
       j["post_processor"] = {
           {"type", "TemplateProcessing"},
           {"single", array({object({{"SpecialToken", {{"id", "<s>"}}}}), object({{"Sequence", object()}})})},
           {"special_tokens", {{"<s>", {{"ids", array({123456})}}}}}};
     },
     kInvalid, "123456"},
    {"template_without_text",
     [](object& j) {
       j["post_processor"] = {{"type", "TemplateProcessing"}, {"single", array()}};
     },
     kInvalid, "Sequence"},
    {"decoder",
     [](object& j) {
       j["decoder"] = {{"type", "Backwards"}};
     },
     kUnbuilt, "Backwards"},
    {"strip_of_two_characters",
     [](object& j) {
       j["decoder"] = {{"type", "Strip"}, {"content", "ab"}};
     },
     kInvalid, "decoder.content"},
    {"added_is_no_list", [](object& j) { j["added_tokens"] = object(); }, kInvalid, "added_tokens"},
    {"added_without_id",
     [](object& j) {
       j["added_tokens"].as_array().push_back(object({{"content", "x!"}}));
     },
     kInvalid, "added_tokens[1].id"},
    {"added_negative_id",
     [](object& j) {
       j["added_tokens"].as_array().push_back(object({{"content", "x!"}, {"id", -4}}));
     },
     kInvalid, "added_tokens[1].id"},
    {"added_takes_an_id",
     [](object& j) {
       j["added_tokens"].as_array().push_back(object({{"content", "x!"}, {"id", 7}}));
     },
     kInvalid, "added_tokens[1]"},
    {"added_moves_a_token",
     [](object& j) {
       j["added_tokens"].as_array().push_back(object({{"content", "!"}, {"id", 5000}}));
     },
     kInvalid, "added_tokens[1]"},
    {"deep", [](object& j) { j["pre_tokenizer"] = nested_splits(40); }, kInvalid, "deep"},
};

class BadTokenizerJsonTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadTokenizerJsonTest, IsRefusedByName) {
  object json = small_bpe();
  GetParam().change(json);
  const auto made = Tokenizer::from_json(boost::json::serialize(json));
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), GetParam().code) << made.status().message();
  EXPECT_THAT(made.status().message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Fields, BadTokenizerJsonTest, ::testing::ValuesIn(kBadCases),
                         [](const auto& test) { return test.param.name; });

TEST(TokenizerJsonTest, TextThatIsNoJsonIsRefused) {
  for (const std::string text : {"", "{", "[]", "null", "\xff", "{\"model\": 3}"}) {
    EXPECT_FALSE(Tokenizer::from_json(text).ok()) << text;
  }
  EXPECT_FALSE(Tokenizer::from_json(std::string(1 << 20, '[')).ok());
  EXPECT_THAT(Tokenizer::from_json("{\"model\": nil}").status().message(), HasSubstr("at byte 1"));
}

TEST(TokenizerJsonTest, TruncationAtAnyByteIsAnErrorAndNeverACrash) {
  const std::string whole = read_data("small_bpe.json");
  for (size_t length = 0; length < whole.size() - 1; length += 7) {
    EXPECT_FALSE(Tokenizer::from_json(whole.substr(0, length)).ok()) << length;
  }
}

TEST(TokenizerJsonTest, LookupsTellOfTokensAndHoles) {
  object json = small_bpe();
  const auto size = static_cast<TokenId>(vocab(json).size());
  json["added_tokens"].as_array().push_back(object({{"content", "<far>"}, {"id", size + 10}, {"special", true}}));
  const auto tokenizer = load(json);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->vocab_size(), size + 11);
  EXPECT_EQ(tokenizer->token_to_id("<far>"), size + 10);
  EXPECT_EQ(tokenizer->id_to_token(size + 10), "<far>");
  EXPECT_TRUE(tokenizer->is_special(size + 10));
  for (const TokenId id : {-1, size + 3, size + 11, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer->id_to_token(id), std::nullopt) << id;
    EXPECT_EQ(tokenizer->token_bytes(id), "") << id;
    EXPECT_FALSE(tokenizer->is_special(id)) << id;
    EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{id}, false), "") << id;
  }
  EXPECT_EQ(tokenizer->token_to_id("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer->token_bytes(*tokenizer->token_to_id("\u0120t")), " t");
}

TEST(TokenizerJsonTest, TokensOfTheConfigurationAloneAreAdded) {
  const object json = small_bpe();
  const auto size = static_cast<TokenId>(json.at("model").at("vocab").as_object().size());
  const std::string config = boost::json::serialize(object({{"added_tokens_decoder",
                                                             {{"0", {{"content", "<|endoftext|>"}, {"special", true}}},
                                                              {"9999", {{"content", "<|extra|>"}, {"special", true}}},
                                                              {"5", {{"content", "e"}}}}}}));
  const auto made = Tokenizer::from_json(boost::json::serialize(json), config);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const Tokenizer& tokenizer = **made;
  EXPECT_EQ(tokenizer.vocab_size(), size + 1);
  EXPECT_EQ(tokenizer.token_to_id("<|extra|>"), size);
  EXPECT_TRUE(tokenizer.is_special(size));
  EXPECT_THAT(tokenizer.encode("q<|extra|>w", false),
              ::testing::ElementsAre(*tokenizer.token_to_id("q"), size, *tokenizer.token_to_id("w")));
  EXPECT_EQ(load(json)->token_to_id("<|extra|>"), std::nullopt);
  EXPECT_THAT(
      Tokenizer::from_json(boost::json::serialize(json), R"({"added_tokens_decoder": {"7": {}}})").status().message(),
      HasSubstr("tokenizer_config.json: added_tokens_decoder[\"7\"].content"));
}

TEST(TokenizerJsonTest, CharactersOutsideTheVocabularyBecomeTheUnknownToken) {
  const auto tokenizer = [](bool fuse) {
    object json = small_bpe();
    vocab(json).clear();
    for (const char* token : {"<unk>", "a", "b", "ab", "é"}) vocab(json)[token] = vocab(json).size();
    model(json)["merges"] = array({array({"a", "b"})});
    model(json)["unk_token"] = "<unk>";
    model(json)["fuse_unk"] = fuse;
    json["added_tokens"] = array();
    json["pre_tokenizer"] = nullptr;
    json["decoder"] = {{"type", "Fuse"}};
    return load(json);
  };
  EXPECT_EQ(tokenizer(false)->encode("abxyéa", false), (std::vector<TokenId>{3, 0, 0, 4, 1}));
  EXPECT_EQ(tokenizer(true)->encode("abxyéa", false), (std::vector<TokenId>{3, 0, 4, 1}));
  EXPECT_EQ(tokenizer(true)->decode(std::vector<TokenId>{3, 4}, false), "abé");
}

TEST(TokenizerJsonTest, TheModelDoesNotMakeATokenThatWasOnlyAddedToIt) {
  for (const bool in_vocabulary : {false, true}) {
    object json = small_bpe();
    vocab(json).clear();
    for (const char* token : {"a", "b", "c"}) vocab(json)[token] = vocab(json).size();
    if (in_vocabulary) vocab(json)["ab"] = 3;
    model(json)["merges"] = array();
    model(json)["ignore_merges"] = true;
    json["added_tokens"] = array({object({{"content", "ab"}, {"id", 3}, {"single_word", true}})});
    json["pre_tokenizer"] = {
        {"type", "Split"}, {"pattern", {{"String", "c"}}}, {"behavior", "Isolated"}, {"invert", false}};
    const auto tokenizer = load(json);
    ASSERT_NE(tokenizer, nullptr);
    EXPECT_EQ(tokenizer->encode("ab", false), (std::vector<TokenId>{3}));
    // Not a word by itself: whole pieces are looked up among the model's own tokens alone.
    EXPECT_EQ(tokenizer->encode("abc", false),
              in_vocabulary ? (std::vector<TokenId>{3, 2}) : (std::vector<TokenId>{0, 1, 2}));
  }
}

}  // namespace
}  // namespace quire::text
