// What schemas leave open, alternatives that nothing satisfies, and properties that no part of a schema looks at.
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "grammar/schema.h"
#include "tests/grammar/grammar_support.h"

namespace quire::grammar {
namespace {

using namespace testing;  // NOLINT

struct EdgeCase {
  std::string schema;
  std::vector<const char*> good, bad;  // of the answers that the grammar takes
};

void expect(const EdgeCase& one) {
  SCOPED_TRACE(one.schema);
  const auto constraint = compiled(schema_output(one.schema));
  ASSERT_TRUE(constraint.ok()) << constraint.status().message();
  for (const char* answer : one.good) {
    EXPECT_TRUE(accepts(**constraint, answer)) << answer;
    EXPECT_TRUE((*constraint)->check(answer).ok()) << answer << ": " << (*constraint)->check(answer).message();
  }
  for (const char* answer : one.bad) EXPECT_FALSE(accepts(**constraint, answer)) << answer;
}

// "": it is taken.
std::string refusal(const char* schema) {
  const auto constraint = compiled(schema_output(schema));
  return constraint.ok() ? "" : constraint.status().message();
}

TEST(OpenObjects, HaveOthersWhereTooFewAreDeclared) {
  expect({R"({"type":"object","properties":{},"minProperties":1})", {R"({"x":1})", R"({"x":1,"y":2})"}, {"{}"}});
  expect({R"({"type":"object","properties":{"a":{"const":1}},"minProperties":2})",
          {R"({"a":1,"x":2})"},
          {R"({"a":1})", R"({"a":1,"a":2})", R"({"x":1})"}});
  expect({R"({"properties":{"a":false},"minProperties":1})", {R"({"x":1})"}, {R"({"a":1})", "{}"}});
  expect({R"({"type":"object","properties":{"a":{"const":1}}})", {"{}", R"({"a":1})"}, {R"({"x":1})"}});
  expect({R"({"type":"object","properties":{}})", {"{}"}, {R"({"x":1})"}});
}

TEST(OpenObjects, AreRefusedWithTheReason) {
  EXPECT_NE(refusal(R"({"type":"object","properties":{},"minProperties":2})").find("names of others could repeat"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"type":"object","properties":{},"minProperties":1,"additionalProperties":false})")
                .find("no object satisfies"),
            std::string::npos);
}

TEST(OpenArrays, HaveOthersWhereTooFewAreDeclared) {
  expect(
      {R"({"type":"array","prefixItems":[{"const":1}],"minItems":2})", {"[1, true]", "[1, 2, 3]"}, {"[1]", "[2, 2]"}});
  expect({R"({"type":"array","prefixItems":[{"const":1}],"minItems":1})", {"[1]"}, {"[]", "[1, 2]"}});
  EXPECT_NE(refusal(R"({"type":"array","prefixItems":[true],"items":false,"minItems":2})"), "");
}

// Schemas that nothing satisfies; "none" is one, too.
constexpr const char* kEmpty[] = {
    "false",
    R"({"type":"integer","minimum":5,"maximum":2})",
    R"({"type":"integer","exclusiveMinimum":5,"maximum":9,"multipleOf":5})",
    R"({"type":"number","exclusiveMinimum":2,"maximum":2})",
    R"({"type":"string","minLength":3,"maxLength":2})",
    R"({"type":"array","minItems":3,"maxItems":2})",
    R"({"type":"array","minItems":2,"prefixItems":[true],"items":false})",
    R"({"type":"array","minItems":1,"items":{"type":"string","minLength":3,"maxLength":2}})",
    R"({"type":"object","properties":{"a":false},"required":["a"]})",
    R"({"type":"object","properties":{"a":{"anyOf":[false,{"type":"integer","minimum":5,"maximum":2}]}},"required":["a"]})",
    R"({"type":"object","required":["a"],"additionalProperties":false})",
    R"({"type":"object","properties":{"a":true},"additionalProperties":false,"minProperties":2})",
    R"({"type":"object","required":["a"],"unevaluatedProperties":false})",
    R"({"type":"object","minProperties":2,"unevaluatedProperties":{"type":"number","exclusiveMinimum":2,"maximum":2}})",
    R"({"type":"array","minItems":2,"prefixItems":[true],"unevaluatedItems":false})",
    R"({"const":1,"type":"string"})",
    R"({"allOf":[{"type":"string"},{"type":"integer"}]})",
    R"({"$ref":"#/$defs/none"})",
};
constexpr const char* kNone = R"("$defs":{"none":{"type":"string","minLength":2,"maxLength":1}})";

TEST(Alternatives, ThatNothingSatisfiesAreLeftOut) {
  const std::string head = "{" + std::string(kNone) + ",";
  for (const std::string keyword : {"anyOf", "oneOf"}) {
    for (const std::string empty : kEmpty) {
      const std::string one = head + "\"" + keyword + "\":[" + empty + R"(,{"type":"boolean"}]})";
      expect({one.c_str(), {"true", "false"}, {"1", "6", "\"\"", "[]", "{}"}});
      const std::string two = head + "\"" + keyword + "\":[{\"type\":\"null\"}," + empty + R"(,{"type":"boolean"}]})";
      expect({two.c_str(), {"true", "null"}, {"1", "6", "\"\"", "[]", "{}"}});
    }
  }
}

// A value without them satisfies the schema.
TEST(OptionalParts, ThatNothingSatisfiesAreNeverThere) {
  for (const std::string empty : kEmpty) {
    const auto is_taken = [&](const std::string& rest, std::vector<const char*> good, std::vector<const char*> bad) {
      const std::string schema = "{" + std::string(kNone) + "," + rest + "}";
      expect({schema.c_str(), std::move(good), std::move(bad)});
    };
    is_taken(R"("type":"object","properties":{"a":)" + empty + R"(,"b":{"type":"null"}})", {"{}", R"({"b":null})"},
             {R"({"a":1})", R"({"a":1,"b":null})", R"({"a":"x"})", R"({"a":{}})"});
    is_taken(R"("type":"object","additionalProperties":)" + empty, {"{}"}, {R"({"a":1})", R"({"a":"x"})"});
    is_taken(R"("type":"object","patternProperties":{"^a":)" + empty + R"(},"additionalProperties":false)", {"{}"},
             {R"({"a":1})", R"({"a":"x"})"});
    is_taken(R"("type":"array","items":)" + empty, {"[]"}, {"[1]", "[\"x\"]"});
    is_taken(R"("type":"array","prefixItems":[{"type":"null"},)" + empty + R"(,{"type":"null"}])", {"[]", "[null]"},
             {"[null, 1]", "[null, \"x\", null]", "[null, null]"});
    is_taken(R"("allOf":[{"type":"object","properties":{"a":)" + empty + R"(}},{"properties":{"b":{"type":"null"}}}])",
             {"{}", R"({"b":null})"}, {R"({"a":1})", R"({"a":"x"})"});
  }
  expect({R"({"type":["string","null"],"minLength":3,"maxLength":2})", {"null"}, {"\"\"", "\"abc\""}});
}

TEST(OptionalParts, ThatAreRequiredAreTheReason) {
  for (const std::string empty : kEmpty) {
    const std::string schema =
        "{" + std::string(kNone) + R"(,"type":"object","required":["a"],"properties":{"a":)" + empty + R"(,"b":true}})";
    EXPECT_NE(refusal(schema.c_str()).find("in the schema at #"), std::string::npos) << schema;
    const std::string array =
        "{" + std::string(kNone) + R"(,"type":"array","minItems":1,"prefixItems":[)" + empty + "]}";
    EXPECT_NE(refusal(array.c_str()).find("in the schema at #"), std::string::npos) << array;
  }
}

TEST(OptionalParts, ThatRequireThemselvesWithoutEndAreNeverThere) {
  constexpr const char* kEndless =
      R"("$defs":{"endless":{"type":"object","properties":{"x":{"$ref":"#/$defs/other"}},"required":["x"]},
                  "other":{"type":"array","items":{"$ref":"#/$defs/endless"},"minItems":1}})";
  const std::string object = "{" + std::string(kEndless) +
                             R"(,"type":"object","properties":{"a":{"$ref":"#/$defs/endless"},"b":{"type":"null"}}})";
  expect({object.c_str(), {"{}", R"({"b":null})"}, {R"({"a":{"x":[]}})", R"({"a":{}})"}});
  const std::string either = "{" + std::string(kEndless) + R"(,"anyOf":[{"$ref":"#/$defs/other"},{"type":"null"}]})";
  expect({either.c_str(), {"null"}, {"[]", "[{}]"}});
  expect({R"({"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"},{"type":"null"}]},
                       "b":{"type":"array","items":{"$ref":"#/$defs/a"},"minItems":1}},"$ref":"#/$defs/b"})",
          {"[null]", "[[null], null]"},
          {"[]", "[[]]", "null"}});
  EXPECT_NE(refusal(("{" + std::string(kEndless) + R"(,"$ref":"#/$defs/endless"})").c_str()).find("requires itself"),
            std::string::npos);
}

TEST(Alternatives, ThatNothingSatisfiesAreTheReasonWhereThereIsNoOther) {
  for (const char* keyword : {"anyOf", "oneOf"}) {
    const std::string schema = "{\"" + std::string(keyword) + R"(":[{"type":"integer","minimum":5,"maximum":2}]})";
    EXPECT_NE(refusal(schema.c_str()).find("in the schema at #"), std::string::npos) << refusal(schema.c_str());
  }
}

TEST(Alternatives, ThatAreNotSupportedStillRefuseTheWhole) {
  EXPECT_NE(refusal(R"({"anyOf":[{"type":"array","uniqueItems":true},{"type":"null"}]})").find("uniqueItems"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"anyOf":[{"type":"number","multipleOf":0.5},{"type":"null"}]})").find("multipleOf"),
            std::string::npos);
}

TEST(Lengths, BesideAPatternAreHeeded) {
  expect({R"({"type":"string","pattern":"^[A-Z]{2}[0-9]*$","maxLength":4})",
          {"\"AB\"", "\"AB12\""},
          {"\"AB123\"", "\"A\"", "\"\""}});
  expect({R"({"type":"string","pattern":"[a-z]+","minLength":3,"maxLength":4})",
          {"\"abc\"", "\"abcd\""},
          {"\"ab\"", "\"abcde\""}});
  expect({R"({"type":"string","pattern":"a|bbb|c*","minLength":2})",
          {"\"bbb\"", "\"cc\"", "\"cccc\""},
          {"\"a\"", "\"c\"", "\"\""}});
  expect({R"({"type":"string","pattern":"(ab)*","maxLength":5})", {"\"\"", "\"abab\""}, {"\"ababab\""}});
  expect(
      {R"({"type":"string","pattern":"[a-z]+@[a-z]+","maxLength":7})", {"\"a@b\"", "\"abc@def\""}, {"\"abcd@efgh\""}});
  expect({R"({"type":"string","pattern":"(a*b){2,}","maxLength":3})", {"\"bb\""}, {"\"abab\"", "\"b\""}});
  expect({R"({"allOf":[{"type":"string","pattern":"[a-z]+"},{"maxLength":2}]})", {"\"a\"", "\"ab\""}, {"\"abc\""}});
}

// As pydantic has a URL, and an address of a database's column.
TEST(Lengths, BesideAFormatAreHeeded) {
  expect({R"({"type":"string","format":"uri","minLength":1,"maxLength":2083})",
          {"\"https://example.com/a?b=c\"", "\"mailto:a\""},
          {"\"\"", "\"example\""}});
  EXPECT_NE(refusal(R"({"type":"string","format":"uri","maxLength":40})").find("no strings of its pattern"),
            std::string::npos);
  expect({R"({"type":"string","format":"email","maxLength":255})", {"\"me@example.com\""}, {"\"me\""}});
  expect({R"({"type":"string","format":"email","minLength":8,"maxLength":254})",
          {"\"somebody@example.com\""},
          {"\"a@bc.de\""}});
  expect({R"({"type":"string","format":"uuid","minLength":36,"maxLength":36})",
          {"\"123e4567-e89b-12d3-a456-426614174000\""},
          {"\"123e4567\""}});
}

// Every text that the grammar takes has the lengths, whatever the expression.
TEST(Lengths, OfRandomExpressionsHold) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto draw = [&](size_t below) { return random() % below; };
  const std::function<std::string(int)> expression = [&](int depth) -> std::string {
    constexpr const char* kCounts[] = {"*", "+", "?", "{2}", "{1,3}", "{2,}"};
    switch (depth == 0 ? 0 : draw(4)) {
      case 0:
        return draw(2) == 0 ? "a" : "[ab]";
      case 1:
        return expression(depth - 1) + expression(depth - 1);
      case 2:
        return "(?:" + expression(depth - 1) + "|" + expression(depth - 1) + ")";
      default:
        return "(?:" + expression(depth - 1) + ")" + kCounts[draw(std::size(kCounts))];
    }
  };
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size() && texts[i].size() < 5; ++i) {
    const std::string begun = texts[i];
    for (const char* letter : {"a", "b"}) texts.push_back(begun + letter);
  }
  int made = 0;
  for (int i = 0; i < 100; ++i) {
    const size_t least = draw(3);
    const std::string schema = R"({"type":"string","pattern":")" + expression(3) + R"(","minLength":)" +
                               std::to_string(least) + R"(,"maxLength":)" + std::to_string(least + draw(3)) + "}";
    SCOPED_TRACE(schema);
    const auto constraint = compiled(schema_output(schema));
    if (!constraint.ok()) continue;
    ++made;
    for (const std::string& text : texts) {
      const std::string answer = "\"" + text + "\"";
      if (!accepts(**constraint, answer)) continue;
      EXPECT_TRUE((*constraint)->check(answer).ok()) << answer;
    }
  }
  EXPECT_GT(made, 30);
}

TEST(UnevaluatedProperties, BesideAllOfAreThoseOfNoPart) {
  expect({R"({"type":"object","properties":{"a":{"type":"null"}},"allOf":[{"properties":{"b":{"type":"null"}}}],
              "unevaluatedProperties":false})",
          {"{}", R"({"a":null})", R"({"a":null,"b":null})"},
          {R"({"c":1})", R"({"a":1})"}});
  expect({R"({"allOf":[{"type":"object","properties":{"a":true}},{"required":["a"]}],"unevaluatedProperties":false})",
          {R"({"a":1})"},
          {"{}", R"({"a":1,"b":1})"}});
}

// Each level asks the one below it twice: 2^28 times without what has been found being kept.
TEST(UnevaluatedProperties, OfManyLevelsAreLookedAtOnceALevel) {
  constexpr int kLevels = 28;
  const auto chain = [kLevels](const std::string& innermost, const std::string& type, const std::string& rest) {
    std::string schema = R"({"$defs":{"L0":)" + innermost;
    for (int level = 1; level <= kLevels; ++level) {
      schema += fmt::format(R"(,"L{}":{{"type":"{}","allOf":[{{"$ref":"#/$defs/L{}"}}],"{}":{{"type":"integer"}}}})",
                            level, type, level - 1, rest);
    }
    return fmt::format(R"({}}},"$ref":"#/$defs/L{}"}})", schema, kLevels);
  };
  expect({chain(R"({"type":"array","prefixItems":[{"type":"integer"}],"items":false,"minItems":1})", "array",
                "unevaluatedItems"),
          {"[1]"},
          {"[]", "[1,2]"}});
  expect(
      {chain(R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false})",
             "object", "unevaluatedProperties"),
       {R"({"a":1})"},
       {"{}", R"({"a":1,"b":2})"}});
}

TEST(UnevaluatedProperties, OfAPartAreNotEvaluatedByAnother) {
  expect(
      {R"({"type":"object","allOf":[{"properties":{"a":true},"unevaluatedProperties":false},{"properties":{"b":true}}]})",
       {"{}", R"({"a":1})"},
       {R"({"b":1})", R"({"a":1,"b":1})"}});
  expect(
      {R"({"type":"object","properties":{"b":true},"allOf":[{"properties":{"a":true},"unevaluatedProperties":false}]})",
       {"{}", R"({"a":1})"},
       {R"({"b":1})"}});
}

TEST(UnevaluatedProperties, AreNotEvaluatedByAConditionThatFails) {
  EXPECT_NE(refusal(R"({"type":"object","if":{"properties":{"a":{"const":1}},"required":["a"]},
                        "else":{"properties":{"b":true}},"unevaluatedProperties":false})")
                .find("asks about the property \"a\""),
            std::string::npos);
  expect({R"({"type":"object","properties":{"a":{"enum":[1,2]}},"required":["a"],
              "if":{"properties":{"a":{"const":1}}},"then":{"properties":{"x":true}},"else":{"properties":{"y":true}},
              "unevaluatedProperties":false})",
          {R"({"a":1,"x":0})", R"({"a":2,"y":0})"},
          {R"({"a":1,"y":0})", R"({"a":2,"x":0})"}});
}

// {"b":1} satisfies both alternatives, though the first evaluates nothing of it.
TEST(UnevaluatedProperties, BesideAlternativesThatOverlapAreRefused) {
  for (const char* schema :
       {R"({"type":"object","oneOf":[{"minProperties":0},{"properties":{"b":true}}],"required":["b"],
            "unevaluatedProperties":false})",
        R"({"type":"array","oneOf":[{"prefixItems":[]},{"prefixItems":[{"minimum":3}]}],"minItems":1,
            "unevaluatedItems":false})"}) {
    const auto constraint = compiled(schema_output(schema));
    if (!constraint.ok()) continue;
    for (const char* answer : {R"({"b":1})", "[\"x\"]", "[5]"}) {
      if (!accepts(**constraint, answer)) continue;
      EXPECT_TRUE((*constraint)->check(answer).ok()) << schema << answer;
    }
  }
}

TEST(UnevaluatedProperties, AreLookedAtInAFinishedAnswer) {
  const auto constraint = compiled(schema_output(
      R"({"type":"object","anyOf":[{"properties":{"a":{"const":1}},"required":["a"]},{"properties":{"b":true}}],
          "unevaluatedProperties":false})"));
  ASSERT_TRUE(constraint.ok()) << constraint.status().message();
  EXPECT_TRUE((*constraint)->check(R"({"a":1,"b":1})").ok());
  EXPECT_FALSE((*constraint)->check(R"({"a":2,"b":1})").ok());
  EXPECT_FALSE((*constraint)->check(R"({"c":1})").ok());
}

TEST(UnevaluatedItems, AreLookedAtInAFinishedAnswer) {
  struct Case {
    const char* schema;
    std::vector<const char*> good, bad;
  };
  const Case kCases[] = {
      {R"({"type":"array","allOf":[{"prefixItems":[{"type":"null"}]}],"unevaluatedItems":{"type":"integer"}})",
       {"[]", "[null]", "[null,1,2]"},
       {"[null,\"x\"]", "[1]", "[null,1,null]"}},
      {R"({"type":"array","anyOf":[{"prefixItems":[{"const":1},{"const":2}]},{"prefixItems":[{"const":1}]}],
           "unevaluatedItems":false})",
       {"[]", "[1]", "[1,2]"},
       {"[1,3]", "[1,2,3]", "[2]"}},
      {R"({"type":"array","$ref":"#/$defs/p","unevaluatedItems":false,"$defs":{"p":{"prefixItems":[{"const":1}]}}})",
       {"[]", "[1]"},
       {"[1,1]"}},
      {R"({"type":"array","allOf":[{"items":{"type":"integer"}}],"unevaluatedItems":false})",
       {"[]", "[1,2]"},
       {"[\"x\"]"}},
      {R"({"type":"array","allOf":[{"allOf":[{"prefixItems":[true]}],"unevaluatedItems":{"type":"null"}}],
           "unevaluatedItems":false})",
       {"[1]", "[1,null,null]"},
       {"[1,2]"}},
      {R"({"type":"array","if":{"minItems":2},"then":{"prefixItems":[true,true]},"else":{"prefixItems":[{"const":1}]},
           "unevaluatedItems":false})",
       {"[]", "[1]", "[5,6]"},
       {"[2]", "[5,6,7]"}},
  };
  for (const Case& one : kCases) {
    SCOPED_TRACE(one.schema);
    const auto constraint = compiled(schema_output(one.schema));
    ASSERT_TRUE(constraint.ok()) << constraint.status().message();
    for (const char* answer : one.good) {
      EXPECT_TRUE((*constraint)->check(answer).ok()) << answer << ": " << (*constraint)->check(answer).message();
    }
    for (const char* answer : one.bad) EXPECT_FALSE((*constraint)->check(answer).ok()) << answer;
  }
}

}  // namespace
}  // namespace quire::grammar
