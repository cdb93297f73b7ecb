// JSON of strangers: the value is the library's own, and no choice of names makes it slow.
#include "base/parse_json.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/colliding_names.h"

namespace quire {
namespace {

namespace json = boost::json;
using testing::HasSubstr;

std::string refusal_of(std::string_view text, const JsonLimits& limits = {}) {
  boost::system::error_code error;
  parse_json(text, error, limits);
  return error ? error.message() : "";
}

TEST(ParseJson, ReadsWhatTheLibraryReads) {
  for (
      const char* text :
      {R"({"a":[1,-2,3.5,1e300,18446744073709551615,true,false,null,"x\n\u00e9\ud83d\ude00",{}],"b\"\u0062":{"c":[]}})",
       R"({"a":1,"b":2,"a":3})", "[]", "\"\"", " 1 ", "-0.0", "[[[[]]]]"}) {
    boost::system::error_code error;
    EXPECT_EQ(parse_json(text, error), json::parse(text)) << text;
    EXPECT_FALSE(error) << text;
  }
}

TEST(ParseJson, RefusesWhatTheLibraryRefuses) {
  for (const char* text : {"", "{", "[1,]", R"({"a"})", R"({"a":1}x)", "\"\xff\"", "nul", "01", R"({a:1})"}) {
    boost::system::error_code expected;
    json::parse(text, expected);
    EXPECT_TRUE(expected) << text;
    EXPECT_EQ(refusal_of(text), expected.message()) << text;
  }
  EXPECT_EQ(refusal_of("[[[[1]]]]", {.max_depth = 4}), "");
  EXPECT_THAT(refusal_of("[[[[1]]]]", {.max_depth = 3}), HasSubstr("too deep"));
}

TEST(ParseJson, SaysHowFarItCame) {
  boost::system::error_code error;
  JsonReport report;
  parse_json("[1,2,x]", error, {}, &report);
  EXPECT_EQ(report.used, 5u);
  EXPECT_EQ(report.excess, "");
}

TEST(ParseJson, AnObjectHasABoundedNumberOfMembers) {
  std::vector<std::string> names;
  for (size_t i = 0; i < kMostJsonMembers; ++i) names.push_back(std::to_string(i));
  boost::system::error_code error;
  EXPECT_EQ(parse_json(object_of(names), error).get_object().size(), names.size());
  EXPECT_FALSE(error) << error.message();
  names.emplace_back("one more");
  EXPECT_THAT(refusal_of(object_of(names)), HasSubstr("more than 65536 members"));
  EXPECT_THAT(refusal_of("[{\"a\":" + object_of(names) + "}]"), HasSubstr("more than 65536 members"));
  names.emplace_back("another");
  JsonReport report;
  parse_json(R"({"x":{"y":1},"logit_bias":)" + object_of(names) + "}", error, {}, &report);
  EXPECT_EQ(report.excess, "logit_bias has 65538 members; at most 65536 are taken");
  EXPECT_EQ(report.member, "logit_bias");
}

std::string excess_of(std::string_view text, const JsonLimits& limits, std::string* member = nullptr) {
  boost::system::error_code error;
  JsonReport report;
  const json::value value = parse_json(text, error, limits, &report);
  EXPECT_EQ(static_cast<bool>(error), !report.excess.empty()) << error.message();
  if (!error) {
    EXPECT_EQ(value, json::parse(text));
  }
  if (member != nullptr) *member = report.member;
  return report.excess;
}

TEST(ParseJson, AListHasABoundedNumberOfObjects) {
  const JsonLimits limits{.max_items = 3};
  for (const char* text : {R"({"a":[{},[],{},"x",[],{}],"b":["x","y",null,true,"z"]})", "[1,2,3,4,5]",
                           R"(["x",1,2,[],"y"])", "[[1,2,3,4],[5,6,7,8],[[[],[],[]]]]"}) {
    EXPECT_EQ(excess_of(text, limits), "") << text;
  }
  struct Case {
    const char* text;
    const char* excess;
    const char* member;
  };
  for (const Case& one : {Case{R"({"x":[1],"a":[{},{},{},{}]})", "a has 4 entries; at most 3 are taken", "a"},
                          Case{R"({"a":["x",1,{},2,{},{"b":[[[]]],"c":{}},{},3]})", "a has 8 entries; at most 3", "a"},
                          Case{R"({"k":{"x":1},"a":[{"z":{}},{"b":1,"c":{"d":[{},{},{},{}]},"e":2}]})",
                               "a[1].c.d has 4 entries; at most 3 are taken", "a"},
                          Case{R"([[],[{},{},{},{},{}]])", "[1] has 5 entries; at most 3 are taken", ""},
                          Case{"[{},{},{},{}]", "the JSON has 4 entries; at most 3 are taken", ""}}) {
    std::string member;
    EXPECT_THAT(excess_of(one.text, limits, &member), HasSubstr(one.excess)) << one.text;
    EXPECT_EQ(member, one.member) << one.text;
  }
  EXPECT_THAT(refusal_of(R"({"a":[{},{},{},{},x]})", limits), HasSubstr("syntax error")) << "what is counted is read";
}

TEST(ParseJson, ATextHasABoundedNumberOfValuesAndOfNumbers) {
  const JsonLimits limits{.max_values = 6, .max_numbers = 4};
  EXPECT_EQ(excess_of(R"({"a":["x",[]],"b":{"c":[1,2,3,4]}})", limits), "");
  EXPECT_EQ(excess_of(R"({"a":["x",[],{},"y"],"b":{"c":[1,2,3,4]}})", limits),
            "the JSON has 8 values that are no numbers; at most 6 are taken");
  EXPECT_EQ(excess_of("[1,2,[3,4.5,6]]", limits), "the JSON has 5 numbers; at most 4 are taken");
}

// A table of n names in one chain takes n^2 / 2 comparisons: none is made.
TEST(ParseJson, NamesThatAreChosenToCollideAreRefusedBeforeATableIsMade) {
  for (const size_t salt : {0x00u, 0x10u, 0xF0u}) {
    EXPECT_THAT(refusal_of(object_of(colliding_names(1024, 1024, salt))), HasSubstr("collide")) << salt;
  }
  const std::string object = object_of(colliding_names(256, 256));
  EXPECT_THAT(refusal_of("{\"a\":[" + object + "]}"), HasSubstr("collide"));
  std::string escaped = object;  // the same names, each with an escape in it
  for (size_t at = 0; (at = escaped.find("\"", at)) != std::string::npos; at = escaped.find(",", at)) {
    escaped.replace(
        at + 1, 1,
        "\\u00" + std::string(1, escaped[at + 1] < 'p' ? '6' : '7') + "0123456789abcdef"[escaped[at + 1] & 15]);
    if (escaped.find(",", at) == std::string::npos) break;
  }
  EXPECT_THAT(refusal_of(escaped), HasSubstr("collide"));
  EXPECT_THAT(refusal_of(object_of(std::vector<std::string>(1000, "same"))), HasSubstr("collide"));
  EXPECT_EQ(refusal_of(object_of(colliding_names(32, 32))), "") << "few are no harm";
}

TEST(ParseJson, NamesThatNobodyChoseDoNotCollide) {
  for (const size_t count : {33u, 64u, 100u, 128u, 1000u, 1024u, 4096u, 50257u}) {
    for (const char* form : {"", "property_", "#/$defs/Kind", "\xC3\xA9\xC3\xA9"}) {
      std::vector<std::string> names;
      for (size_t i = 0; i < count; ++i) names.push_back(form + std::to_string(i));
      EXPECT_EQ(refusal_of(object_of(names)), "") << count << " " << form;
    }
  }
}

}  // namespace
}  // namespace quire
