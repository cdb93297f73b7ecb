// Counts that masks leave to the recogniser: its reading of a grammar, and what comes of both together.
#include <algorithm>
#include <map>
#include <random>
#include <span>
#include <vector>

#include "grammar/answer_reading.h"
#include "grammar/mask_cache.h"
#include "grammar/recogniser.h"
#include "grammar/regex.h"
#include "grammar/rules.h"
#include "grammar/schema.h"
#include "grammar_support.h"

namespace quire::grammar {
namespace {

using testing::accepts;
using testing::byte_level;
using testing::compiled;
using testing::schema_output;

std::shared_ptr<const Rules> rules_of(std::string_view ebnf) {
  auto rules = Rules::parse(ebnf);
  EXPECT_TRUE(rules.ok()) << rules.status().message();
  return rules.ok() ? *rules : nullptr;
}

bool recognised(const std::shared_ptr<const Rules>& rules, std::string_view text) {
  Recogniser recogniser(rules);
  return recogniser.accept(text) && recogniser.complete();
}

TEST(Rules, ReadWhatTheGrammarSays) {
  const auto rules = rules_of(R"(# a remark
root ::= "a\u00e9\"" list? | ("x" root){2,3}
list ::= [^a-c\n]+ "-" [\]\-\\]*)");
  for (const char* good : {"aé\"", "aé\"d-", "aé\"dxyz-]-\\", "xaé\"xaé\"", "xaé\"d-xaé\"xaé\""}) {
    EXPECT_TRUE(recognised(rules, good)) << good;
  }
  for (const char* bad : {"", "a", "aé\"-", "aé\"a-", "aé\"d\n-", "xaé\"", "xaé\"xaé\"xaé\"xaé\"", "aé\"d-x"}) {
    EXPECT_FALSE(recognised(rules, bad)) << bad;
  }
}

TEST(Rules, SayWhatTheyDoNotRead) {
  for (const char* unread : {"root ::= root \"a\" | \"b\"", "root ::= (\"\" | \"x\") a\na ::= root", "root ::= [\\d]",
                             "root ::= Regex(\"a\")", "root[max_tokens=3] ::= \"a\"", "root ::= \"a\" (=\"b\")"}) {
    EXPECT_EQ(Rules::parse(unread).status().code(), StatusCode::kUnimplemented) << unread;
  }
  for (const char* wrong : {"", "root ::= a", "root ::= \"a", "root ::= [a", "root ::= (\"a\"", "root ::= \"a\"{3,2}",
                            "root ::= \"a\"\nroot ::= \"b\"", "other ::= \"a\""}) {
    EXPECT_FALSE(Rules::parse(wrong).ok()) << wrong;
  }
}

TEST(Rules, LoosenLongRunsThatEndByThemselves) {
  EXPECT_EQ(rules_of(R"(root ::= "<" [a-z]{2,90} ">")")->loose_ebnf(), R"(root ::= "<" [a-z]+ ">")");
  EXPECT_EQ(rules_of(R"(root ::= [ \n]{0,32} "x" ([0-9]){0,20})")->loose_ebnf(), R"(root ::= [ \n]* "x" ([0-9])*)");
  for (const char* counted :
       {R"(root ::= "<" [a-z]{2,90} [x-z])", R"(root ::= ([a-z]{2,90} "."?)*)", R"(root ::= [a-f]{1,4} ">")",
        R"(root ::= [a-z]+ ">")", "root ::= a \"x\"\na ::= [a-z]{2,90}"}) {
    EXPECT_FALSE(rules_of(counted)->any_loose()) << counted;
  }
}

TEST(Recogniser, AgreesWithTheExpressionsOwnMatching) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  constexpr const char* kLetters[] = {"a", "b", "c", "é", "."};
  for (const char* pattern : {"a{2,5}", "[abc]{3,30}", "(a|b)*c", "(a?b*c+)?", "(ab|a)(bc|c)", "(a|ab|b)*", "(a*)*b",
                              "((a?){3}b){2,4}", "[^a]{0,20}a", ".{1,40}", "([ab]{1,20}\\.)+", "(a|[^a]{2,20})é"}) {
    auto regex = Regex::parse(pattern, {});
    ASSERT_TRUE(regex.ok()) << pattern;
    const auto rules = rules_of("root ::= " + regex->ebnf(Spelling::kText));
    for (int i = 0; i < 600; ++i) {
      std::string text;
      for (size_t left = random() % 12; left > 0; --left) text += kLetters[random() % (i % 2 == 0 ? 3 : 5)];
      EXPECT_EQ(recognised(rules, text), regex->matches(text)) << pattern << " of " << text;
      // However it is cut.
      Recogniser recogniser(rules);
      bool all = true;
      for (const char byte : text) all = all && recogniser.accept(std::string_view(&byte, 1));
      EXPECT_EQ(all && recogniser.complete(), regex->matches(text)) << pattern << " of " << text;
    }
  }
}

TEST(Recogniser, IsAsItWasAfterWhatItRefuses) {
  Recogniser recogniser(rules_of(R"(root ::= "<" [a-zé]{2,3} ">")"));
  EXPECT_TRUE(recogniser.accept("<a"));
  EXPECT_FALSE(recogniser.accept(">"));
  EXPECT_FALSE(recogniser.accept("bcd"));
  EXPECT_FALSE(recogniser.accept("\xE2"));  // no character of the set begins so
  EXPECT_TRUE(recogniser.accept("\xC3"));
  EXPECT_FALSE(recogniser.accept(">"));
  EXPECT_TRUE(recogniser.accept("\xA9>"));
  EXPECT_TRUE(recogniser.complete());
}

TEST(Recogniser, GivesUpWhereThereAreTooManyWays) {
  const auto rules = rules_of("root ::= a a a a\na ::= (\"x\"{1,40} | \"x\"{1,41}){0,50}");
  Recogniser recogniser(rules);
  const std::string text(400, 'x');
  if (!recogniser.accept(text)) {
    EXPECT_TRUE(recogniser.lost());
  }
  EXPECT_FALSE(recogniser.lost() && recogniser.accept("x"));
}

// A random text that the recogniser has taken, of at most `most` letters.
Recogniser after_random_text(const std::shared_ptr<const Rules>& rules, std::span<const char* const> letters,
                             size_t most, std::mt19937& random) {
  Recogniser recogniser(rules);
  for (size_t left = random() % (most + 1); left > 0; --left) recogniser.accept(letters[random() % letters.size()]);
  return recogniser;
}

// Does what may come next, as far as a few letters, tell the two apart?
bool differ(const Recogniser& one, const Recogniser& other, std::span<const char* const> letters, int reach) {
  if (one.complete() != other.complete()) return true;
  if (reach == 0) return false;
  return std::ranges::any_of(letters, [&](const char* letter) {
    Recogniser first = one;
    Recogniser second = other;
    const bool taken = first.accept(letter);
    return taken != second.accept(letter) || (taken && differ(first, second, letters, reach - 1));
  });
}

TEST(Recogniser, PlacesOfOneSignatureLeadOnAlike) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  constexpr const char* kLetters[] = {"a", "b", "."};
  constexpr int kReach = 4;
  for (const char* ebnf :
       {R"(root ::= [ab]{3,30} ".")", R"(root ::= ([ab]{1,3} "."){4,20})", R"(root ::= ("ab" | "a"){12,40} "."?)",
        R"(root ::= (("a" "b"?){2,9} "."){0,9} "b")", R"(root ::= ([ab]* "."?){5,11})",
        "root ::= \"a\" root \".\" | [b]{2,8}", R"(root ::= ([ab]{2} "." [ab]){7} | [ab.]{0,25})"}) {
    const auto rules = rules_of(ebnf);
    std::map<std::string, std::vector<Recogniser>> places;
    for (int i = 0; i < 400; ++i) {
      Recogniser place = after_random_text(rules, kLetters, 40, random);
      const std::string signature = place.signature(kReach);
      places[signature].push_back(std::move(place));
    }
    size_t most = 0;
    for (const auto& [signature, alike] : places) {
      most = std::max(most, alike.size());
      for (size_t i = 1; i < alike.size() && i < 12; ++i)
        EXPECT_FALSE(differ(alike[0], alike[i], kLetters, kReach)) << ebnf;
    }
    EXPECT_GT(most, 1U) << ebnf;
  }
}

TEST(MaskCache, GivesBackWhatItKeptAndForgetsWhenItIsFull) {
  MaskCache cache;
  std::vector<uint32_t> mask(1 << 16);
  EXPECT_FALSE(cache.find("a", mask));
  mask[7] = 5;
  cache.keep("a", mask);
  std::vector<uint32_t> found(mask.size());
  ASSERT_TRUE(cache.find("a", found));
  EXPECT_EQ(found, mask);
  for (int i = 0; i < 1000; ++i) {  // 256 KiB each
    mask[0] = static_cast<uint32_t>(i);
    cache.keep(std::to_string(i), mask);
  }
  EXPECT_FALSE(cache.find("a", found));
  ASSERT_TRUE(cache.find("999", found));
  EXPECT_EQ(found[0], 999U);
}

// Of the same answers a output that keeps every mask and one that keeps none must allow the same.
TEST(MaskCache, KeptMasksAreThoseThatWouldBeMade) {
  const auto& text = byte_level();
  const auto output_of = [&](const StructuredOutput& output, double kept_mask_seconds) {
    auto constraint = compile_constraint(output, {.kept_mask_seconds = kept_mask_seconds}, text.vocabulary);
    EXPECT_TRUE(constraint.ok()) << constraint.status().message();
    return constraint.ok() ? constraint->constraint : nullptr;
  };
  std::vector<StructuredOutput> constraints = {
      schema_output(R"({"type":"object","additionalProperties":{"type":"number"}})"),
      schema_output(R"({"type":"array","items":{"type":"string","maxLength":30},"maxItems":14})")};
  for (const char* pattern : {"([A-Z][a-z]{2,12}[ ,.]){10,40}", "(a|b|the |of ){3,30}", "([a-z]+-|[A-F]{2}){1,20}"}) {
    constraints.push_back({.kind = StructuredOutput::Kind::kRegex, .text = pattern});
  }
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (const StructuredOutput& output : constraints) {
    const auto keeps = output_of(output, 0.0);
    const auto makes = output_of(output, 1e9);
    ASSERT_TRUE(keeps != nullptr && makes != nullptr);
    for (int answer = 0; answer < 12; ++answer) {
      const auto kept = keeps->start();
      const auto made = makes->start();
      for (int i = 0; i < 120; ++i) {
        const auto mask = testing::mask_of(*made, text);
        ASSERT_EQ(testing::mask_of(*kept, text), mask) << output.text << ", token " << i;
        std::vector<TokenId> allowed;
        for (TokenId id = 0; id < text.vocab_size; ++id) {
          if (testing::is_set(mask, id) && id != text.end) allowed.push_back(id);
        }
        if (allowed.empty()) break;
        const TokenId token = allowed[random() % allowed.size()];
        const bool accepted = made->accept(token);
        ASSERT_EQ(kept->accept(token), accepted);
      }
    }
  }
}

// The tokens that may follow a text, one token each for a character.
std::string allowed_after(const TokenConstraint& constraint, std::string_view text, std::string_view candidates) {
  const auto& vocabulary = byte_level();
  const auto state = constraint.start();
  for (const TokenId id : vocabulary.tokenizer->encode(text, false)) EXPECT_TRUE(state->accept(id)) << text;
  const auto mask = testing::mask_of(*state, vocabulary);
  std::string allowed;
  for (const char c : candidates) {
    const std::vector<TokenId> ids = vocabulary.tokenizer->encode(std::string(1, c), false);
    EXPECT_EQ(ids.size(), 1U);
    if (testing::is_set(mask, ids.front())) allowed += c;
  }
  return allowed;
}

TEST(Counts, OfAStringAreInTheMask) {
  const auto constraint = compiled(schema_output(R"({"type":"string","minLength":3,"maxLength":5})"));
  ASSERT_TRUE(constraint.ok()) << constraint.status().message();
  EXPECT_EQ(allowed_after(**constraint, "\"ab", "x\""), "x");
  EXPECT_EQ(allowed_after(**constraint, "\"abc", "x\""), "x\"");
  EXPECT_EQ(allowed_after(**constraint, "\"abcde", "x\""), "\"");
  for (const char* good : {"\"abc\"", "\"abcde\"", "\"äöü\"", "\"€€€€€\""}) EXPECT_TRUE(accepts(**constraint, good));
  for (const char* bad : {"\"ab\"", "\"abcdef\"", "\"äö\"", "\"€€€€€€\""}) EXPECT_FALSE(accepts(**constraint, bad));
}

TEST(Counts, OfTwoAlternativesForAStringAreBothHeeded) {
  const auto constraint =
      compiled(schema_output(R"({"anyOf":[{"type":"string","maxLength":3},{"const":"abcdef"},{"const":"abz"}]})"));
  ASSERT_TRUE(constraint.ok()) << constraint.status().message();
  EXPECT_EQ(allowed_after(**constraint, "\"ab", "cxz\""), "cxz\"");
  EXPECT_EQ(allowed_after(**constraint, "\"abc", "dx\""), "d\"");
  EXPECT_EQ(allowed_after(**constraint, "\"abcd", "ex\""), "e");
  for (const char* good : {"\"\"", "\"xyz\"", "\"abcdef\"", "\"abz\""})
    EXPECT_TRUE(accepts(**constraint, good)) << good;
  for (const char* bad : {"\"abcd\"", "\"wxyz\"", "\"abcdefg\""}) EXPECT_FALSE(accepts(**constraint, bad)) << bad;
}

TEST(Counts, OfAnExpressionHoldTheEnd) {
  StructuredOutput output{.kind = testing::Kind::kRegex, .text = "[a-z]{3,40}"};
  const auto constraint = compiled(output);
  ASSERT_TRUE(constraint.ok()) << constraint.status().message();
  EXPECT_FALSE(accepts(**constraint, "ab"));
  EXPECT_TRUE(accepts(**constraint, "abc"));
  EXPECT_TRUE(accepts(**constraint, std::string(40, 'q')));
  EXPECT_FALSE(accepts(**constraint, std::string(41, 'q')));
}

TEST(Counts, OfACopyGoOnByThemselves) {
  const auto constraint = compiled(schema_output(R"({"type":"string","maxLength":2})"));
  ASSERT_TRUE(constraint.ok());
  const auto& tokenizer = *byte_level().tokenizer;
  const auto one = (*constraint)->start();
  for (const TokenId id : tokenizer.encode("\"a", false)) ASSERT_TRUE(one->accept(id));
  const auto other = one->clone();
  const TokenId b = tokenizer.encode("b", false).front();
  EXPECT_TRUE(one->accept(b));
  EXPECT_FALSE(one->accept(b));
  EXPECT_TRUE(other->accept(b));
}

TEST(FinishedTexts, BehindReasoningAreChecked) {
  for (const ReasoningFormat format : {ReasoningFormat::kThink, ReasoningFormat::kGptOss}) {
    const AnswerReading reading{.reasoning = format};
    const auto check = [&](const StructuredOutput& said, std::string_view text) {
      const auto output = constraint_of(reading, said, {});
      EXPECT_TRUE(output.ok() && output->has_value()) << output.status().message();
      const auto constraint = compiled(**output);
      EXPECT_TRUE(constraint.ok()) << constraint.status().message();
      return (*constraint)->check(text).ok();
    };
    const StructuredOutput schema =
        schema_output(R"({"type":"object","required":["a"],"properties":{"a":{"const":1}}})");
    EXPECT_TRUE(check(schema, "\n{\"a\": 1}"));
    EXPECT_FALSE(check(schema, "\n{\"a\": 2}"));
    const StructuredOutput regex{.kind = testing::Kind::kRegex, .text = "a+"};
    EXPECT_TRUE(check(regex, "\n\naa"));
    EXPECT_FALSE(check(regex, "\nab"));
    const StructuredOutput choice{.kind = testing::Kind::kChoice, .choices = {"yes", "no"}};
    EXPECT_TRUE(check(choice, "no"));
    EXPECT_FALSE(check(choice, "maybe"));
  }
}

TEST(Parameters, ThatAreElementsFollowTheirSchemas) {
  AnswerReading reading{.tools = ToolFormat::kQwen3Coder, .choice = ToolChoice::kRequired};
  reading.functions = {{"f", boost::json::parse(R"({"type":"object","properties":{"s":{"type":"string"},
      "n":{"type":"string","minLength":2,"maxLength":3},"e":{"enum":["x",5]},"i":{"type":"integer","minimum":7}},
      "required":["s","n"]})"),
                        true}};
  const auto output = constraint_of(reading, std::nullopt, {});
  ASSERT_TRUE(output.ok()) << output.status().message();
  const auto constraint = compiled(**output);
  ASSERT_TRUE(constraint.ok()) << constraint.status().message();
  const auto call = [](const std::string& parameters) {
    return "<tool_call>\n<function=f>\n" + parameters + "</function>\n</tool_call>";
  };
  const auto value = [](const std::string& name, const std::string& text) {
    return "<parameter=" + name + ">\n" + text + "\n</parameter>\n";
  };
  const std::string s = value("s", "any </thing>\nat all");
  EXPECT_TRUE(accepts(**constraint, call(s + value("n", "ab"))));
  EXPECT_TRUE(accepts(**constraint, call(s + value("n", "abc") + value("e", "5") + value("i", "12"))));
  EXPECT_FALSE(accepts(**constraint, call(s + value("n", "abcd"))));
  EXPECT_FALSE(accepts(**constraint, call(s + value("n", "a"))));
  EXPECT_FALSE(accepts(**constraint, call(s + value("n", "ab") + value("e", "y"))));
  EXPECT_FALSE(accepts(**constraint, call(s + value("n", "ab") + value("i", "6"))));
  EXPECT_FALSE(accepts(**constraint, call(s)));
}

constexpr const char* kTag = R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<t>"],"tags":[
  {"type":"tag","begin":"<t>","content":{"type":"json_schema","json_schema":{"type":"string","maxLength":3}},
   "end":"</t>"}],"at_least_one":false,"stop_after_first":false}})";

TEST(Counts, WithinAStructuralTagAreHeeded) {
  const auto constraint = compiled({.kind = testing::Kind::kStructuralTag, .text = kTag});
  ASSERT_TRUE(constraint.ok()) << constraint.status().message();
  for (const char* good : {"", "abcdef <", "a <t>\"abc\"</t> b<t>\"\"</t><t", "<<t>\"a\"</t>"}) {
    EXPECT_TRUE(accepts(**constraint, good)) << good;
    EXPECT_TRUE((*constraint)->check(good).ok()) << good;
  }
  for (const char* bad : {"a <t>\"abcd\"</t>", "<t>abc</t>", "<t>\"a\""}) {
    EXPECT_FALSE(accepts(**constraint, bad)) << bad;
    EXPECT_FALSE((*constraint)->check(bad).ok()) << bad;
  }
}

TEST(Counts, OfFinishedTextsOfAGrammarAreChecked) {
  const auto constraint = compiled({.kind = testing::Kind::kGrammar, .text = "root ::= [a-z]{2,30} (\"-\" [0-9])*"});
  ASSERT_TRUE(constraint.ok()) << constraint.status().message();
  for (const char* good : {"ab", "abc-1-2"}) EXPECT_TRUE((*constraint)->check(good).ok()) << good;
  for (const char* bad : {"", "a", "ab-", "ab-12", "AB"}) EXPECT_FALSE((*constraint)->check(bad).ok()) << bad;
  EXPECT_FALSE((*constraint)->check(std::string(31, 'a')).ok());
}

}  // namespace
}  // namespace quire::grammar
