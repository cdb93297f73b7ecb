// What is refused before anything is compiled, by name, and limits from either side.
#include "grammar/check.h"

#include <gmock/gmock.h>

#include "grammar/schema.h"
#include "tests/grammar/grammar_support.h"

namespace quire::grammar {
namespace {

using namespace testing;  // NOLINT
using ::testing::HasSubstr;

// Checked, then written as a grammar.
Status schema_status(std::string_view text, const GrammarLimits& limits = {}) {
  auto schema = Schema::parse(text, limits);
  if (!schema.ok()) return schema.status();
  return (*schema)->ebnf(true).status();
}

TEST(SchemaCheck, RefusesByName) {
  const std::pair<const char*, const char*> refused[] = {
      {R"(7)", "a schema is an object or true"},
      {R"(false)", "no value satisfies"},
      {R"({"not":{}})", "no value satisfies all that it says"},
      {R"({"type":"string","not":{"pattern":"a"}})", "in the schema at #/not: \"pattern\" cannot be negated"},
      {R"({"properties":{"a":{"not":{"items":{"type":"null"}}}}})", "#/properties/a/not: \"items\" cannot be negated"},
      {R"({"type":"string","not":{"const":"a"},"minLength":1})", "beside pattern, format or a length"},
      {R"({"not":{"not":{"type":"integer"}}})", "within a negation"},
      {R"({"not":{"const":[1]}})", "\"not\" of a whole array"},
      {R"({"if":{"properties":{"a":{"pattern":"x"}}},"then":{"required":["b"]}})", "\"pattern\" cannot be negated"},
      {R"({"if":{"$ref":"#"},"then":{}})", "without end"},
      {R"({"allOf":[{"$ref":"#/$defs/a"}],"type":"object","$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"}],"type":"object"}}})",
       "without end"},
      {R"({"allOf":[{"type":"string","pattern":"a"},{"pattern":"b"}]})", "\"pattern\" twice"},
      {R"({"allOf":[{"patternProperties":{"a":{}}},{"properties":{"a":{}}}]})", "cannot be put together"},
      {R"({"allOf":[{"type":"object"},{"type":"string"}]})", "no value satisfies"},
      {R"({"allOf":[{"required":["a"]},{"properties":{"a":false}}],"type":"object"})", "no value satisfies"},
      {R"({"dependentRequired":{}})", "\"dependentRequired\" is not supported"},
      {R"({"type":"array","uniqueItems":true})", "\"uniqueItems\" is not supported"},
      {R"({"type":"array","contains":{}})", "\"contains\" is not supported"},
      {R"({"properties":{"a":{"tpye":"string"}}})", "#/properties/a"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{}},"minLength":1})", "needs a \"type\""},
      {R"({"type":"string","const":1})", "no value satisfies"},
      {R"({"type":"strang"})", "there is no type \"strang\""},
      {R"({"type":[]})", "type must be a name"},
      {R"({"type":[1]})", "type must be a name"},
      {R"({"minLength":1})", "needs a \"type\""},
      {R"({"enum":[]})", "enum must be a list"},
      {R"({"anyOf":[]})", "anyOf must be a list"},
      {R"({"allOf":[]})", "allOf must be a list"},
      {R"({"allOf":[{"tpye":"string"},{}]})", "#/allOf/0: the keyword \"tpye\""},
      {R"({"$ref":"http://x/y"})", "only places in the schema itself"},
      {R"({"$ref":"#/$defs/none"})", "leads nowhere"},
      {R"({"$ref":"#"})", "comes back to itself"},
      {R"({"$ref":7})", "$ref must be a string"},
      {R"({"$defs":[]})", "$defs must be an object"},
      {R"({"type":"string","pattern":7})", "pattern must be a string"},
      {R"({"type":"string","pattern":"a","minLength":2})", "no strings of its pattern"},
      {R"({"type":"string","format":"date","maxLength":3})", "no strings of its pattern or format"},
      {R"({"type":"string","format":"regex"})", "is not supported"},
      {R"({"type":"string","format":"int32"})", "format is not one of strings"},
      {R"({"type":"string","minLength":-1})", "whole number from 0"},
      {R"({"type":"string","minLength":1.5})", "whole number from 0"},
      {R"({"type":"string","minLength":3,"maxLength":2})", "minLength is greater"},
      {R"({"type":"integer","minimum":"1"})", "minimum must be a number"},
      {R"({"type":"integer","minimum":1e300})", "within 9e15"},
      {R"({"type":"integer","minimum":2,"maximum":1})", "no number is within"},
      {R"({"type":"integer","exclusiveMinimum":1,"exclusiveMaximum":2})", "no number is within"},
      {R"({"type":"integer","multipleOf":0})", "multipleOf"},
      {R"({"type":"integer","multipleOf":129})", "needs a minimum and a maximum"},
      {R"({"type":"integer","multipleOf":3,"minimum":0})", "needs the other"},
      {R"({"type":"integer","multipleOf":100,"minimum":1,"maximum":99})", "no multiple"},
      {R"({"type":"number","multipleOf":0.1})", "multipleOf must be a whole number"},
      {R"({"type":"number","exclusiveMinimum":1234567890.123456})", "more than 15 digits"},
      {R"({"type":"array","items":7})", "a schema is an object"},
      {R"({"type":"array","prefixItems":{}})", "prefixItems must be a list"},
      {R"({"type":"array","prefixItems":[{}],"items":false,"minItems":2})", "no array has 2 items"},
      {R"({"type":"array","minItems":3,"maxItems":2})", "no array has 3 items"},
      {R"({"type":"object","properties":[]})", "properties must be an object"},
      {R"({"type":"object","required":[1]})", "required must be a list"},
      {R"({"type":"object","required":["a"],"additionalProperties":false})", "required names \"a\""},
      {R"({"type":"object","properties":{"a":{}},"minProperties":2,"additionalProperties":false})", "no object"},
      {R"({"type":"object","additionalProperties":{},"minProperties":2})", "names of others could repeat"},
      {R"({"type":"object","minProperties":3,"maxProperties":2})", "minProperties is greater"},
      {R"({"type":"object","patternProperties":{"a":{},"b":{}}})", "more than one pattern"},
      {R"({"type":"object","patternProperties":{"a":{}},"properties":{}})", "beside properties"},
      {R"({"type":"object","patternProperties":{"a":{}},"additionalProperties":true})",
       "additionalProperties to be false"},
      {R"({"type":"object","properties":{"a":{}},"propertyNames":{"maxLength":1},"additionalProperties":true})",
       "a name could be one of the declared"},
      {R"({"type":"object","properties":{"ab":{}},"required":["ab"],"propertyNames":{"maxLength":1}})",
       "breaks propertyNames"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "might satisfy both"},
      {R"({"oneOf":[{"const":1},{"enum":[2,1.0]}]})", "might satisfy both"},
      {R"({"oneOf":[{"type":"object","properties":{"k":{"const":1}}},{"type":"object","properties":{"k":{"const":2}}}]})",
       "might satisfy both"},
      {R"({"type":"object","properties":{"n":{"$ref":"#"}},"required":["n"]})", "requires itself without end"},
      {R"({"type":"array","items":{"$ref":"#"},"minItems":1})", "requires itself without end"},
  };
  for (const auto& [schema, why] : refused) {
    const Status status = schema_status(schema);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << schema;
    EXPECT_THAT(status.message(), HasSubstr(why)) << schema;
  }
}

TEST(SchemaCheck, LimitsAreHeldFromEitherSide) {
  GrammarLimits limits;
  limits.max_count = 5;
  EXPECT_TRUE(schema_status(R"({"type":"string","maxLength":5})", limits).ok());
  EXPECT_FALSE(schema_status(R"({"type":"string","maxLength":6})", limits).ok());
  limits.max_alternatives = 3;
  EXPECT_TRUE(schema_status(R"({"enum":[1,2,3]})", limits).ok());
  EXPECT_FALSE(schema_status(R"({"enum":[1,2,3,4]})", limits).ok());
  limits.max_schema_nodes = 4;
  EXPECT_TRUE(schema_status(R"({"enum":[1,2]})", limits).ok());
  EXPECT_FALSE(schema_status(R"({"enum":[1,2,3]})", limits).ok());
  limits.max_depth = 3;
  EXPECT_TRUE(schema_status(R"({"items":{"items":{}}})", limits).ok());
  EXPECT_FALSE(schema_status(R"({"items":{"items":{"items":{}}}})", limits).ok());
}

TEST(StructuredOutputCheck, ChoicesAreCounted) {
  GrammarLimits limits;
  limits.max_alternatives = 2;
  limits.max_bytes = 4;
  const auto status = [&](std::vector<std::string> choices) {
    return check_structured_output({.kind = Kind::kChoice, .choices = std::move(choices)}, limits);
  };
  EXPECT_TRUE(status({"ab", "cd"}).ok());
  EXPECT_THAT(status({"ab", "cde"}).message(), HasSubstr("5 bytes"));
  EXPECT_THAT(status({"a", "b", "c"}).message(), HasSubstr("3 choices"));
  EXPECT_THAT(status({}).message(), HasSubstr("empty"));
  EXPECT_THAT(status({""}).message(), HasSubstr("a choice is empty"));
}

TEST(RegexCheck, RefusesWhatItDoesNotKnow) {
  for (const char* pattern :
       {"",        "a(b",         "a)b",  "[a",          "[]",      "[b-a]",     "foo**",    "a{2,1}",
        "a{b}",    "a{,3}",       "*a",   "\\",          "\\1",     "(?=a)b",    "(?<!a)b",  "(?i)a",
        "(?<>a)",  "\\p{L}",      "\\ba", "a^b",         "a$b",     "(^a)",      "\\q",      "\\xg1",
        "\\ud800", "\\u{110000}", "\\01", "[[:alpha:]]", "[\\d-z]", "[^\\s\\S]", "(?P<a>b)", "a\xff"}) {
    EXPECT_FALSE(Regex::parse(pattern, {}).ok()) << pattern;
  }
}

TEST(RegexCheck, MatchesTheWholeText) {
  const auto matches = [](std::string_view pattern, std::string_view text) {
    auto regex = Regex::parse(pattern, {});
    EXPECT_TRUE(regex.ok()) << pattern << ": " << regex.status().message();
    return regex.ok() && regex->matches(text);
  };
  EXPECT_TRUE(matches("^a|bc$", "a"));
  EXPECT_TRUE(matches("a|bc", "bc"));
  EXPECT_FALSE(matches("a|bc", "abc"));
  EXPECT_TRUE(matches("(ab){2,3}", "ababab"));
  EXPECT_FALSE(matches("(ab){2,3}", "ab"));
  EXPECT_FALSE(matches("(ab){2,3}", "abababab"));
  EXPECT_TRUE(matches("a{2,}", "aaaaa"));
  EXPECT_TRUE(matches("(a*)*b", "aaab"));
  EXPECT_TRUE(matches("[^a-c]", "é"));
  EXPECT_FALSE(matches(".", "\n"));
  EXPECT_TRUE(matches("\\ud83d\\ude00", "😀"));
  EXPECT_TRUE(matches("[\\w.-]+@x", "a.b-c@x"));
  EXPECT_FALSE(matches("\\D", "٣"));  // a digit for some
  EXPECT_FALSE(matches("[^\\s]", "\u3000"));
}

}  // namespace
}  // namespace quire::grammar
