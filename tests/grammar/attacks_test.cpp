// Structured output as an attack, by the ids of the list of attacks: refused by name, or compiled within bounds.
#include <gmock/gmock.h>

#include "tests/grammar/grammar_support.h"

namespace quire::grammar {
namespace {

using namespace testing;  // NOLINT

std::string repeat(std::string_view text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

void expect_refused(const StructuredOutput& output) {
  const Status status = compiled(output).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << output.text.substr(0, 100);
  EXPECT_LT(status.message().size(), 1000u);
}

TEST(Attacks, G1MalformedStructuredOutput) {
  for (const char* schema :
       {"", "{", "nul", "{\"type\":\"strange\"}", "{\"type\":5}", "{\"properties\":7}",
        "{\"type\":\"string\",\"pattern\":\"foo**\"}", "{\"type\":\"string\",\"pattern\":\"(\"}"}) {
    expect_refused(schema_output(schema));
  }
  for (const char* regex : {"foo**", "(", "[", "a{99999999999}", "\\"}) {
    expect_refused({.kind = Kind::kRegex, .text = regex});
  }
  for (const char* grammar : {"", "root", "root ::= ", "root ::= x", "x ::= \"a\"", "root ::= \"a", "root ::= [b-a]",
                              "root ::= (\"a\"", "root ::= \"a\"{5,2}"}) {
    expect_refused({.kind = Kind::kGrammar, .text = grammar});
  }
  for (const char* tag : {"", "[]", "{\"format\":{\"type\":\"what\"}}", "{\"type\":\"structural_tag\"}"}) {
    expect_refused({.kind = Kind::kStructuralTag, .text = tag});
  }
}

TEST(Attacks, G2DeepCyclicAndNestedStructuredOutput) {
  expect_refused(schema_output(repeat("{\"items\":", 100000) + "{}" + repeat("}", 100000)));
  expect_refused(schema_output(R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})"));
  expect_refused(schema_output(R"({"allOf":[{"$ref":"#"}]})"));
  expect_refused({.kind = Kind::kRegex, .text = repeat("(", 60000) + "a" + repeat(")", 60000)});
  expect_refused({.kind = Kind::kRegex, .text = repeat("(", 5000) + "a" + repeat(")", 5000)});
  expect_refused({.kind = Kind::kGrammar, .text = "root ::= " + repeat("(", 60000) + "\"a\"" + repeat(")", 60000)});
  expect_refused({.kind = Kind::kRegex, .text = "((((a{100}){100}){100}){100}){100}"});
  expect_refused({.kind = Kind::kGrammar, .text = "root ::= (((\"a\"{1000}){1000}){1000})"});
}

TEST(Attacks, G3AnEnumOfSeventyThousand) {
  std::string list = "\"0\"";
  for (int i = 1; i < 70000; ++i) list += ",\"" + std::to_string(i) + "\"";
  expect_refused(schema_output("{\"enum\":[" + list + "]}"));
}

TEST(Attacks, G7DeepJson) {
  expect_refused(schema_output(repeat("[", 100000) + repeat("]", 100000)));
  expect_refused(schema_output("{\"const\":" + repeat("[", 100000) + repeat("]", 100000) + "}"));
  expect_refused({.kind = Kind::kStructuralTag, .text = repeat("[", 100000) + repeat("]", 100000)});
  const auto any = compiled({.kind = Kind::kJsonObject});
  ASSERT_TRUE(any.ok());
  EXPECT_FALSE((*any)->check("{\"a\":" + repeat("[", 100000) + repeat("]", 100000) + "}").ok());
}

}  // namespace
}  // namespace quire::grammar
