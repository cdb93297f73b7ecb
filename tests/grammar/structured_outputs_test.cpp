// Structured outputs as masks: what may be said, where an answer may end, and that what is said is what was asked for.
#include <gmock/gmock.h>

#include "grammar/random_walk.h"
#include "tests/grammar/grammar_support.h"

namespace quire::grammar {
namespace {

using namespace testing;  // NOLINT
using ::testing::HasSubstr;

Constraint must(const StructuredOutput& output, const Text& text = byte_level()) {
  auto made = compiled(output, text);
  EXPECT_TRUE(made.ok()) << output.text << ": " << made.status().message();
  return made.ok() ? *made : nullptr;
}

TEST(StructuredOutputs, ChoicesAreTakenLiterally) {
  const std::vector<std::string> choices = {"a\"b",
                                            "back\\slash",
                                            "\n1",
                                            "\tf",
                                            "é😀",
                                            "yes",
                                            "yes, sir",
                                            "[a-z]",
                                            "root ::= x",
                                            "{2}",
                                            "\x01"
                                            "f"};
  const Constraint constraint = must({.kind = Kind::kChoice, .choices = choices});
  ASSERT_NE(constraint, nullptr);
  for (const std::string& choice : choices) {
    EXPECT_TRUE(accepts(*constraint, choice)) << choice;
    EXPECT_TRUE(constraint->check(choice).ok());
    EXPECT_FALSE(accepts(*constraint, choice + "x")) << choice;
  }
  EXPECT_FALSE(accepts(*constraint, "ye"));
  EXPECT_FALSE(constraint->check("ye").ok());
}

TEST(StructuredOutputs, RegexesMeanTheWholeAnswer) {
  const Constraint constraint = must({.kind = Kind::kRegex, .text = "(foo|bär)+[0-9]{2}\\.\"?"});
  EXPECT_TRUE(accepts(*constraint, "foobär12."));
  EXPECT_TRUE(accepts(*constraint, "foo12.\""));
  EXPECT_FALSE(accepts(*constraint, "foo12"));
  EXPECT_FALSE(accepts(*constraint, "xfoo12."));
  EXPECT_FALSE(constraint->check("foo1.").ok());
}

TEST(StructuredOutputs, GrammarsAndTags) {
  const Constraint grammar = must({.kind = Kind::kGrammar, .text = "root ::= \"(\" root \")\" | \"x\"\n"});
  EXPECT_TRUE(accepts(*grammar, "((x))"));
  EXPECT_FALSE(accepts(*grammar, "((x)"));
  const Constraint tag = must(
      {.kind = Kind::kStructuralTag,
       .text = R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<f>"],"tags":[{"type":"tag",
       "begin":"<f>","content":{"type":"json_schema","json_schema":{"type":"object","properties":{"title":{"type":
       "integer"}},"required":["title"]}},"end":"</f>"}]}})"});
  ASSERT_NE(tag, nullptr);
  EXPECT_TRUE(accepts(*tag, "free text <f>{\"title\": 4}</f> and more"));
  EXPECT_FALSE(accepts(*tag, "free text <f>{\"title\": \"x\"}</f>"));
  EXPECT_FALSE(accepts(*tag, "free text <f>{\"title\": 4}"));
}

TEST(StructuredOutputs, TagsRefuseWhatCannotBeGuaranteed) {
  for (const char* tag : {R"({"format":{"type":"json_schema","json_schema":{"not":{}}}})",
                          R"({"format":{"type":"json_schema","json_schema":{},"style":"qwen_xml"}})",
                          R"x({"format":{"type":"regex","pattern":"(?=a)"}})x", R"({"format":{"type":"regex"}})",
                          R"({"format":{"type":"qwen_xml_parameter","json_schema":{}}})", R"({"format":7})"}) {
    EXPECT_EQ(compiled({.kind = Kind::kStructuralTag, .text = tag}).status().code(), StatusCode::kInvalidArgument)
        << tag;
  }
}

TEST(StructuredOutputs, TheEndIsAllowedExactlyWhereTheAnswerIsComplete) {
  const Constraint constraint = must(schema_output(R"({"enum":["ab","abc"]})", false));
  const auto state = constraint->start();
  std::string answer;
  for (const char c : std::string("\"ab")) {
    EXPECT_FALSE(is_set(mask_of(*state, byte_level()), byte_level().end)) << answer;
    EXPECT_FALSE(state->accept(byte_level().end));
    ASSERT_TRUE(state->accept(byte_level().tokenizer->encode(std::string(1, c), false).at(0)));
    answer += c;
  }
  const auto other = state->clone();
  ASSERT_TRUE(state->accept(byte_level().tokenizer->encode("\"", false).at(0)));
  EXPECT_TRUE(is_set(mask_of(*state, byte_level()), byte_level().end));
  EXPECT_TRUE(state->accept(byte_level().end));
  EXPECT_FALSE(state->accept(byte_level().tokenizer->encode("x", false).at(0)));
  // The copy stands where it was made.
  EXPECT_TRUE(other->accept(byte_level().tokenizer->encode("c", false).at(0)));
  EXPECT_FALSE(other->accept(byte_level().end));
}

TEST(StructuredOutputs, SpecialTokensAndIdsBeyondTheTokenizerAreNoText) {
  const Constraint constraint = must({.kind = Kind::kRegex, .text = "[\\s\\S]+"});
  const auto state = constraint->start();
  const auto mask = mask_of(*state, byte_level());
  EXPECT_FALSE(is_set(mask, byte_level().end));
  for (TokenId id = static_cast<TokenId>(byte_level().tokenizer->vocab_size()); id < byte_level().vocab_size; ++id) {
    EXPECT_FALSE(is_set(mask, id)) << id;
    EXPECT_FALSE(state->accept(id));
  }
}

TEST(StructuredOutputs, DeclaredNamesAreNotSpelledOtherwise) {
  const Constraint constraint = must(schema_output(
      R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":{"type":"null"}})"));
  EXPECT_TRUE(accepts(*constraint, R"({"a": 1, "ab": null})"));
  EXPECT_FALSE(accepts(*constraint, R"({"a": 1, "a": null})"));
  EXPECT_FALSE(accepts(*constraint, R"({"a": 1, "\u0061": null})"));
}

TEST(StructuredOutputs, PropertiesMayHaveTheNamesOfKeywords) {
  const Constraint constraint = must(schema_output(
      R"({"type":"object","properties":{"x":{"type":"object","properties":{"title":{"type":"string"}},"required":["title"]},
      "y":{"type":"object","properties":{"title":{"type":"integer"}},"required":["title"]}},"required":["x","y"]})"));
  EXPECT_TRUE(accepts(*constraint, R"({"x": {"title": "s"}, "y": {"title": 1}})"));
  EXPECT_FALSE(accepts(*constraint, R"({"x": {"title": "s"}, "y": {"title": "s"}})"));
}

TEST(StructuredOutputs, StringsAreJson) {
  const Constraint constraint = must(schema_output(R"({"type":"string"})"));
  for (const char* good : {R"("a\n\u00e9\ud83d\ude00")", "\"é😀\"", R"("\/\\")"})
    EXPECT_TRUE(accepts(*constraint, good));
  for (const char* bad : {"\"a\nb\"", "\"\t\"", R"("\x")", R"("\ud800")", R"("\udc00\ud800")", "\"\x01\"", "\"a"}) {
    EXPECT_FALSE(accepts(*constraint, bad)) << bad;
  }
  EXPECT_FALSE(accepts(*must(schema_output(R"({"type":"string","maxLength":5})")), "\"\t\""));
}

TEST(StructuredOutputs, TheFinishedAnswerIsCheckedByItself) {
  const Constraint constraint = must(schema_output(
      R"({"type":"object","properties":{"n":{"type":"integer","minimum":3}},"required":["n"],"additionalProperties":false})"));
  EXPECT_TRUE(constraint->check(R"({"n":3})").ok());
  for (const char* bad : {R"({"n":2})", R"({"n":3.5})", R"({})", R"({"n":3,"m":1})", R"({"n":3)", "[]", ""}) {
    EXPECT_EQ(constraint->check(bad).code(), StatusCode::kDataLoss) << bad;
  }
  EXPECT_TRUE(constraint->whole_only());
}

TEST(StructuredOutputs, WhatCombinedSchemasAllowIsAccepted) {
  struct Case {
    const char* schema;
    std::vector<const char*> good, bad;
  };
  const Case kCases[] = {
      {R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"b":{"type":"null"}}}]})",
       {R"({"a": 1})", R"({"a": 1, "b": null})"},
       {R"({"b": null})", R"({"a": 1, "b": 1})"}},
      {R"({"$defs":{"s":{"type":"string"}},"$ref":"#/$defs/s","maxLength":2})", {R"("ab")"}, {R"("abc")", "1"}},
      {R"({"type":"object","properties":{"kind":{"enum":["a","b"]},"n":{"type":"integer"}},"required":["kind"],
           "if":{"properties":{"kind":{"const":"a"}}},"then":{"required":["n"]}})",
       {R"({"kind": "a", "n": 1})", R"({"kind": "b"})", R"({"kind": "b", "n": 1})"},
       {R"({"kind": "a"})", R"({"kind": "c"})"}},
      {R"({"type":"object","properties":{"kind":{"type":"string"},"n":{"type":"integer"}},
           "if":{"properties":{"kind":{"const":"a"}},"required":["kind"]},"then":{"required":["n"]},
           "else":{"properties":{"n":false}}})",
       {R"({})", R"({"kind": "ab"})", R"({"kind": "a", "n": 1})"},
       {R"({"kind": "a"})", R"({"n": 1})", R"({"kind": "b", "n": 1})"}},
      {R"({"type":"string","not":{"enum":["a","ab"]}})", {R"("")", R"("b")", R"("abc")"}, {R"("a")", R"("ab")"}},
      {R"({"not":{"type":["object","array"]}})", {"1", "null", R"("x")", "true"}, {"{}", "[]"}},
      {R"({"type":"number","not":{"const":0}})", {"1", "-0.5"}, {"0", "0.0"}},
      {R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},"oneOf":[{"required":["a"]},{"required":["b"]}]})",
       {R"({"a": null})", R"({"b": null})"},
       {R"({})", R"({"a": null, "b": null})"}},
      {R"({"type":"object","properties":{"a":{"type":"null"}},"anyOf":[{"properties":{"b":{"type":"null"}},"required":["b"]},{"required":["a"]}]})",
       {R"({"a": null})", R"({"b": null})", R"({"a": null, "b": null})"},
       {R"({})"}},
      {R"({"type":"object","properties":{"x":{"allOf":[{"$ref":"#/definitions/Old"}],"title":"X","default":1}},"required":["x"],
           "definitions":{"Old":{"enum":[1,2]}}})",
       {R"({"x": 2})"},
       {R"({"x": 3})"}},
  };
  for (const auto& [schema, good, bad] : kCases) {
    const Constraint constraint = must(schema_output(schema));
    ASSERT_NE(constraint, nullptr) << schema;
    for (const char* text : good) {
      EXPECT_TRUE(accepts(*constraint, text)) << schema << text;
      EXPECT_TRUE(constraint->check(text).ok()) << schema << text << constraint->check(text).message();
    }
    for (const char* text : bad) {
      EXPECT_FALSE(accepts(*constraint, text)) << schema << text;
      EXPECT_FALSE(constraint->check(text).ok()) << schema << text;
    }
  }
}

// Random answers of every schema of the list must satisfy it by the other way, the check of finished texts.
class RandomAnswers : public ::testing::TestWithParam<const Text& (*)()> {};

TEST_P(RandomAnswers, SatisfyTheirSchemas) {
  const Text& text = GetParam()();
  constexpr const char* kSchemas[] = {
      R"({"type":"object"})",
      R"({"type":["string","null","boolean"]})",
      R"({"const":{"k":[1,{"z":null}],"é":"q\"\\\n\u0001"}})",
      R"({"enum":[0.1,1e-7,-3,123456789012345678,"\n1",[],{}]})",
      R"({"type":"integer","minimum":-7,"maximum":1203})",
      R"({"type":"integer","exclusiveMaximum":-99})",
      R"({"type":"integer","multipleOf":12})",
      R"({"type":"integer","minimum":-50,"maximum":77,"multipleOf":7})",
      R"({"type":"number","minimum":-0.25,"maximum":0.125})",
      R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":0.000001})",
      R"({"type":"number","minimum":99.99,"exclusiveMaximum":100.01})",
      R"({"type":"integer","format":"int32"})",
      R"({"type":"string","minLength":3,"maxLength":5})",
      R"({"type":"string","pattern":"^\"[a-z]\\\\(é|\\n)$"})",
      R"({"type":"string","pattern":"^[^a-z]{2}.\\S\\W$"})",
      R"({"type":"string","format":"date-time"})",
      R"({"type":"string","format":"ipv6"})",
      R"({"type":"string","format":"json-pointer"})",
      R"({"type":"string","format":"email"})",
      R"({"type":"array","prefixItems":[{"type":"null"},{"const":2}],"items":{"type":"boolean"},"minItems":1,"maxItems":4})",
      R"({"type":"array","items":{"type":"integer","minimum":0,"maximum":9},"minItems":3,"maxItems":3})",
      R"({"type":"object","properties":{"a":{"const":1},"b":{"const":2},"c":{"const":3}},"required":["b"],"minProperties":2})",
      R"({"type":"object","properties":{"a":{"const":1},"ab":{"const":2}},"additionalProperties":{"type":"null"},"maxProperties":3})",
      R"({"type":"object","properties":{"":{"const":1},"\"":{"const":2},"é":{"const":3}},"additionalProperties":{"type":"null"}})",
      R"({"type":"object","propertyNames":{"pattern":"^[xy]{1,2}$"},"additionalProperties":{"type":"null"},"minProperties":1})",
      R"({"type":"object","patternProperties":{"^k[0-9]$":{"type":"null"}},"additionalProperties":false})",
      R"({"type":"object","required":["x"],"properties":{"y":{"type":"null"}},"additionalProperties":{"type":"boolean"}})",
      R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"$ref":"#/$defs/n"}},"required":["v"]}},"$ref":"#/$defs/n"})",
      R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"}},"required":["k"]},{"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}]})",
      R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"b":{"enum":[1,2]},"a":{"minimum":3}},"required":["b"]}]})",
      R"({"$defs":{"base":{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}},"allOf":[{"$ref":"#/$defs/base"}],"properties":{"n":{"type":"null"}},"required":["n"],"unevaluatedProperties":false})",
      R"({"$defs":{"s":{"type":"string"}},"type":"object","properties":{"x":{"$ref":"#/$defs/s","description":"d","maxLength":2},"y":{"$ref":"#/properties/x"}},"required":["x","y"]})",
      R"({"type":"object","properties":{"kind":{"enum":["a","b","c"]},"n":{"type":"integer"},"s":{"type":"boolean"}},"required":["kind"],
          "if":{"properties":{"kind":{"const":"a"}},"required":["kind"]},"then":{"required":["n"]},"else":{"required":["s"]}})",
      R"({"type":"object","properties":{"k":{"enum":[1,2]},"v":true},"required":["k","v"],"additionalProperties":false,
          "allOf":[{"if":{"properties":{"k":{"const":1}}},"then":{"properties":{"v":{"type":"null"}}}},
                   {"if":{"properties":{"k":{"const":2}}},"then":{"properties":{"v":{"type":"boolean"}}}}]})",
      R"({"type":"string","not":{"enum":["a","\"b","é",""]}})",
      R"({"type":"string","not":{"const":""}})",
      R"({"type":["string","integer","null"],"not":{"type":"string"}})",
      R"({"type":"integer","minimum":1,"maximum":5,"not":{"enum":[1,3,5]}})",
      R"({"enum":["a","b",7,null],"not":{"type":"string"}})",
      R"({"not":{"enum":[null,true,0,"x"]}})",
      R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},"not":{"required":["a","b"]},"additionalProperties":false})",
      R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},"oneOf":[{"required":["a"]},{"required":["b"]}]})",
      R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},"anyOf":[{"required":["a"]},{"required":["b"]}]})",
      R"({"allOf":[{"type":"array","items":{"type":"integer"}},{"minItems":2,"prefixItems":[{"minimum":5},{"maximum":4}]},{"maxItems":3}]})",
      R"({"allOf":[{"type":"object","properties":{"a":{"type":"null"}},"additionalProperties":{"type":"integer"}},{"properties":{"b":{"minimum":2}},"required":["b"]}]})",
      R"({"$defs":{"n":{"allOf":[{"type":"object","properties":{"v":{"const":1}},"required":["v"]},{"properties":{"next":{"$ref":"#/$defs/n"}}}]}},"$ref":"#/$defs/n"})",
      R"({"type":"array","items":{"anyOf":[{"type":"integer","not":{"minimum":3}},{"type":"string","not":{"maxLength":2},"maxLength":4}]},"maxItems":3})",
  };
  for (const char* schema : kSchemas) {
    const Constraint constraint = must(schema_output(schema), text);
    ASSERT_NE(constraint, nullptr);
    int ended = 0;
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const auto walked = random_walk(*constraint, *text.vocabulary, *text.tokenizer, {.seed = seed});
      ASSERT_TRUE(walked.ok()) << schema << " seed " << seed << ": " << walked.status().message();
      if (!*walked) continue;
      ++ended;
      const Status status = constraint->check(**walked);
      EXPECT_TRUE(status.ok()) << schema << " seed " << seed << ": " << **walked << ": " << status.message();
    }
    EXPECT_GT(ended, 0) << schema;
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, RandomAnswers, ::testing::Values(&byte_level, &sentence_piece));

}  // namespace
}  // namespace quire::grammar
