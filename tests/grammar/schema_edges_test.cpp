// What schemas leave open, alternatives that nothing satisfies, and properties that no part of a schema looks at.
#include <string>
#include <vector>

#include "grammar/schema.h"
#include "tests/grammar/grammar_support.h"

namespace quire::grammar {
namespace {

using namespace testing;  // NOLINT

struct EdgeCase {
  const char* schema;
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

TEST(Alternatives, ThatNothingSatisfiesAreLeftOut) {
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
      R"({"const":1,"type":"string"})",
      R"({"allOf":[{"type":"string"},{"type":"integer"}]})",
      R"({"$ref":"#/$defs/none"})",
  };
  const std::string head = R"({"$defs":{"none":{"type":"string","minLength":2,"maxLength":1}},)";
  for (const std::string keyword : {"anyOf", "oneOf"}) {
    for (const std::string empty : kEmpty) {
      const std::string one = head + "\"" + keyword + "\":[" + empty + R"(,{"type":"boolean"}]})";
      expect({one.c_str(), {"true", "false"}, {"1", "6", "\"\"", "[]", "{}"}});
      const std::string two = head + "\"" + keyword + "\":[{\"type\":\"null\"}," + empty + R"(,{"type":"boolean"}]})";
      expect({two.c_str(), {"true", "null"}, {"1", "6", "\"\"", "[]", "{}"}});
    }
  }
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

TEST(UnevaluatedProperties, BesideAllOfAreThoseOfNoPart) {
  expect({R"({"type":"object","properties":{"a":{"type":"null"}},"allOf":[{"properties":{"b":{"type":"null"}}}],
              "unevaluatedProperties":false})",
          {"{}", R"({"a":null})", R"({"a":null,"b":null})"},
          {R"({"c":1})", R"({"a":1})"}});
  expect({R"({"allOf":[{"type":"object","properties":{"a":true}},{"required":["a"]}],"unevaluatedProperties":false})",
          {R"({"a":1})"},
          {"{}", R"({"a":1,"b":1})"}});
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

TEST(UnevaluatedProperties, AreLookedAtInAFinishedAnswer) {
  const auto constraint = compiled(schema_output(
      R"({"type":"object","anyOf":[{"properties":{"a":{"const":1}},"required":["a"]},{"properties":{"b":true}}],
          "unevaluatedProperties":false})"));
  ASSERT_TRUE(constraint.ok()) << constraint.status().message();
  EXPECT_TRUE((*constraint)->check(R"({"a":1,"b":1})").ok());
  EXPECT_FALSE((*constraint)->check(R"({"a":2,"b":1})").ok());
  EXPECT_FALSE((*constraint)->check(R"({"c":1})").ok());
}

}  // namespace
}  // namespace quire::grammar
