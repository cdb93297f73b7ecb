// The hand-written scanners against PCRE2, and what PCRE2 is bounded by.
#include "text/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <utf8proc.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "text/unicode.h"
#include "text/utf8.h"

namespace quire::text {
namespace {

constexpr std::string_view kContractions[] = {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|)",
                                              R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|)"};

std::vector<std::string> scanner_regexes() {
  std::vector<std::string> regexes = {std::string(kGpt2Regex)};
  for (const std::string_view contractions : kContractions) {
    for (const std::string digits : {R"(\p{N}{1,3}|)", R"(\p{N}|)"}) {
      regexes.push_back(std::string(contractions) + R"([^\r\n\p{L}\p{N}]?\p{L}+|)" + digits +
                        R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
      regexes.push_back(std::string(contractions) + R"([^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|)" + digits +
                        R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
    }
  }
  return regexes;
}

std::vector<std::string_view> pieces(const Pattern& pattern, std::string_view text) {
  std::vector<PatternSpan> spans;
  pattern.find(text, spans);
  std::vector<std::string_view> result;
  for (const PatternSpan& span : spans) result.push_back(text.substr(span.begin, span.end - span.begin));
  return result;
}

std::unique_ptr<Pattern> pcre2(std::string_view regex) {
  auto made = make_pcre2_pattern(regex);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? std::move(made).value() : nullptr;
}

// PCRE2 10.42 knows Unicode 14, utf8proc 15: characters that only one of them has assigned are left out.
std::vector<std::vector<char32_t>> characters_by_category() {
  const auto unassigned = pcre2(R"(\p{Cn})");
  std::vector<std::vector<char32_t>> by_category(30);
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_code_point(c, text);
    std::vector<PatternSpan> spans;
    unassigned->find(text, spans);
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    if (spans[0].is_match != (category == UTF8PROC_CATEGORY_CN)) continue;
    by_category[static_cast<size_t>(category)].push_back(c);
  }
  std::erase_if(by_category, [](const auto& list) { return list.empty(); });
  return by_category;
}

TEST(ScannerTest, EveryWellKnownExpressionHasAScanner) {
  for (const std::string& regex : scanner_regexes()) EXPECT_NE(make_scanner_pattern(regex), nullptr) << regex;
  EXPECT_EQ(make_scanner_pattern(R"(\s+)"), nullptr);
  EXPECT_EQ(make_scanner_pattern(std::string(kGpt2Regex) + "|x"), nullptr);
}

TEST(ScannerTest, ScannersAndPcre2AgreeOnRandomTextOfAllCategories) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto by_category = characters_by_category();
  ASSERT_GE(by_category.size(), 28u);
  const std::vector<std::string> frequent = {
      " ", " ", "\n", "\r",     "\t",     "'s",     "'S",     "'\u017f", "'ll",    "'lL", "'re", "'v",   "'", "a",
      "B", "1", "23", "\u00a0", "\u3000", "\u0085", "\u2028", "\u180e",  "\u0301", ".",   "!",   "\r\n", "  "};
  for (const std::string& regex : scanner_regexes()) {
    const auto scanner = make_scanner_pattern(regex);
    const auto reference = pcre2(regex);
    for (int round = 0; round < 1500; ++round) {
      std::string text;
      for (unsigned i = 1 + random() % 24; i > 0; --i) {
        if (random() % 2 == 0) {
          text += frequent[random() % frequent.size()];
        } else {
          const auto& category = by_category[random() % by_category.size()];
          append_code_point(category[random() % category.size()], text);
        }
      }
      ASSERT_EQ(pieces(*scanner, text), pieces(*reference, text)) << regex << "\n" << text;
    }
  }
}

TEST(ScannerTest, EveryCharacterIsClassifiedAsPcre2Does) {
  const std::map<int, std::string> classes = {{kLetter, R"(\p{L})"}, {kNumber, R"(\p{N})"},      {kSpace, R"(\s)"},
                                              {kMark, R"(\p{M})"},   {kPunctuation, R"(\p{P})"}, {kSymbol, R"(\p{S})"}};
  std::string all;
  for (const auto& category : characters_by_category()) {
    for (const char32_t c : category) append_code_point(c, all);
  }
  for (const auto& [bits, regex] : classes) {
    std::vector<PatternSpan> ours, theirs;
    make_class_pattern(bits)->find(all, ours);
    pcre2(regex)->find(all, theirs);
    ASSERT_EQ(ours.size(), theirs.size()) << regex;
    for (size_t i = 0; i < ours.size(); ++i) {
      ASSERT_TRUE(ours[i].begin == theirs[i].begin && ours[i].is_match == theirs[i].is_match) << regex << " span " << i;
    }
  }
}

// BLOOM's and Viking's expression, and others, as tokenizers (Oniguruma) cuts.
TEST(Pcre2Test, AClassInsideAClassIsAPartOfIt) {
  using ::testing::ElementsAre;
  constexpr std::string_view kText = "abc-def xyz|(Hi), 日本。a-b[c] m";
  EXPECT_THAT(pieces(*pcre2(R"( ?[^(\s|[.,!?…。，、।۔،])]+)"), kText),
              ElementsAre("abc-def", " xyz", "|(", "Hi", "),", " 日本", "。", "a-b[c]", " m"));
  EXPECT_THAT(pieces(*pcre2("[ab[c-e]]+"), "abc-def"), ElementsAre("abc", "-", "de", "f"));
  EXPECT_THAT(pieces(*pcre2("[a[-z]]+"), "abc-def xyz"), ElementsAre("a", "bc", "-", "def xy", "z"));
  EXPECT_THAT(pieces(*pcre2("[a[z-]x]+"), "abc-def xyz"), ElementsAre("a", "bc", "-", "def ", "x", "y", "z"));
  EXPECT_THAT(pieces(*pcre2("[[a]x[bc]]+"), "abc-def xyz"), ElementsAre("abc", "-def ", "x", "yz"));
  for (const char* refused : {"[a[^b]]", "[a-[b]]", "[[a]-c]", "[a[]b]]", "[a&&[b]]", "[a[b]"}) {
    EXPECT_FALSE(make_pcre2_pattern(refused).ok()) << refused;
  }
}

TEST(ScannerTest, LongRunsOfOneClassNeedNoStack) {
  for (const std::string unit : {"a", " ", "\n", "7", "'", "\u0301", "漢", "😀", "\u3000"}) {
    std::string text;
    while (text.size() < 1 << 20) text += unit;
    for (const std::string& regex : scanner_regexes()) {
      size_t bytes = 0;
      for (const std::string_view piece : pieces(*make_scanner_pattern(regex), text)) bytes += piece.size();
      EXPECT_EQ(bytes, text.size());
    }
  }
}

TEST(Pcre2PatternTest, ALongRunIsMatchedWithoutRecursion) {
  const std::string text(1 << 20, 'a');
  EXPECT_EQ(pieces(*pcre2(R"((?:a|b)+)"), text).size(), 1u);
  EXPECT_EQ(pieces(*pcre2(R"((?:\p{L}\p{M}*)+)"), text).size(), 1u);
}

TEST(Pcre2PatternTest, AboveTheMatchLimitTheRestIsOnePiece) {
  auto made = make_pcre2_pattern(R"(x|(?:a+)+$y)", 1000);
  ASSERT_TRUE(made.ok());
  const std::string text = "xx" + std::string(40, 'a') + "b";
  EXPECT_EQ(pieces(**made, text), (std::vector<std::string_view>{"x", "x", std::string_view(text).substr(2)}));
}

TEST(Pcre2PatternTest, RubySyntaxIsTranslated) {
  EXPECT_EQ(pieces(*pcre2(R"(\h+)"), "xfe9y"), (std::vector<std::string_view>{"x", "fe9", "y"}));
  EXPECT_EQ(pieces(*pcre2(R"(^b)"), "a\nb"), (std::vector<std::string_view>{"a\n", "b"}));
  EXPECT_EQ(pieces(*pcre2(R"((?m:a.b))"), "a\nbc"), (std::vector<std::string_view>{"a\nb", "c"}));
  EXPECT_EQ(pieces(*pcre2(R"(a.b)"), "a\nbc"), (std::vector<std::string_view>{"a\nbc"}));
  EXPECT_EQ(pieces(*pcre2(R"(\p{^L})"), "a1"), (std::vector<std::string_view>{"a", "1"}));
  EXPECT_EQ(pieces(*pcre2(R"(a{,2}b)"), "aaab"), (std::vector<std::string_view>{"a", "aab"}));
  EXPECT_EQ(pieces(*pcre2(R"(\s)"), "a\u180eb"), (std::vector<std::string_view>{"a\u180eb"}));
  EXPECT_FALSE(make_pcre2_pattern("a{2,3}+").ok());
  EXPECT_FALSE(make_pcre2_pattern("a\\").ok());
  EXPECT_FALSE(make_pcre2_pattern("\\u12").ok());
  EXPECT_FALSE(make_pcre2_pattern("\xff").ok());
}

}  // namespace
}  // namespace quire::text
