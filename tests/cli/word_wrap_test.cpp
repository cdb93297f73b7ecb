// Where the lines of a streamed answer break on a terminal.
#include "cli/word_wrap.h"

#include <gtest/gtest.h>

#include <random>

namespace quire::cli {
namespace {

// Given in pieces of `size` bytes.
std::string wrapped(std::string_view text, int columns, size_t size = 1) {
  WordWrap wrap(columns);
  std::string out;
  for (size_t at = 0; at < text.size(); at += size) out += wrap.add(text.substr(at, size));
  return out + wrap.finish();
}

TEST(WordWrap, BreaksBeforeTheWordThatDoesNotFit) {
  EXPECT_EQ(wrapped("The capital of Italy is Rome.", 12), "The capital\nof Italy is\nRome.");
}

TEST(WordWrap, AWordThatJustFitsStays) {
  EXPECT_EQ(wrapped("abc def", 7), "abc def");
  EXPECT_EQ(wrapped("abc def", 6), "abc\ndef");
}

TEST(WordWrap, LinesOfTheTextStay) {
  EXPECT_EQ(wrapped("one\n\ntwo three\nfour", 9), "one\n\ntwo three\nfour");
}

TEST(WordWrap, AWordIsWrittenWhenItIsComplete) {
  WordWrap wrap(20);
  EXPECT_EQ(wrap.add("Hel"), "");
  EXPECT_EQ(wrap.add("lo wor"), "Hello");
  EXPECT_EQ(wrap.add("ld\n"), " world\n");
  EXPECT_EQ(wrap.add("end"), "");
  EXPECT_EQ(wrap.finish(), "end");
}

TEST(WordWrap, AWordLongerThanALineBeginsOnItsOwnAndIsLeftToTheTerminal) {
  EXPECT_EQ(wrapped("see https://example.org/a/long/path now", 10), "see\nhttps://example.org/a/long/path now");
}

TEST(WordWrap, FencedCodeIsLeftAlone) {
  const std::string code = "```\nint main() { return 0; }\n```\n";
  EXPECT_EQ(wrapped("Some words here:\n" + code + "Some words here.", 10),
            "Some words\nhere:\n" + code + "Some words\nhere.");
}

TEST(WordWrap, IndentedLinesAndRowsOfTablesAreLeftAlone) {
  const std::string lines = "    for i in range(100): print(i)\n\tdeep in a makefile\n| a row | of a table |\n";
  EXPECT_EQ(wrapped(lines, 10), lines);
}

TEST(WordWrap, AListIsWrappedWithItsIndentation) {
  EXPECT_EQ(wrapped("- one two\n  - three four", 8), "- one\ntwo\n  -\nthree\nfour");
}

TEST(WordWrap, ColumnsAreCountedAsATerminalShowsThem) {
  EXPECT_EQ(wrapped("naïve café olé", 10), "naïve café\nolé");             // two bytes, one column
  EXPECT_EQ(wrapped("e\u0301e\u0301 ab cd", 5), "e\u0301e\u0301 ab\ncd");  // a combining accent takes none
  EXPECT_EQ(wrapped("日本語日本語", 5), "日本\n語日\n本語");               // two columns each, and no spaces
}

TEST(WordWrap, WithoutATerminalNothingChanges) {
  const std::string text = "a  b\n" + std::string(300, 'x') + " \xC3\xA9\xC3";
  EXPECT_EQ(wrapped(text, 0), text);
}

TEST(WordWrap, WhereTheTextIsCutDoesNotMatter) {
  const std::string text =
      "Röntgen 日本 discovered  X-rays in 1895.\n```c\nint x;\n```\n- a list\n    code code code\nthe end\xE6\x97";
  for (const int columns : {1, 2, 7, 20, 80}) {
    const std::string whole = wrapped(text, columns, text.size());
    for (size_t size = 1; size < 12; ++size) EXPECT_EQ(wrapped(text, columns, size), whole) << columns << " " << size;
  }
}

TEST(WordWrap, OnlySpaceAndLineEndsEverChange) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 source(seed);
  const auto without_space = [](std::string text) {
    std::erase_if(text, [](char c) { return c == ' ' || c == '\n' || c == '\t'; });
    return text;
  };
  const std::string alphabet = "ab \n`|\té";
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (int i = 0; i < 60; ++i) text.push_back(alphabet[source() % alphabet.size()]);
    EXPECT_EQ(without_space(wrapped(text, 1 + static_cast<int>(source() % 12))), without_space(text));
  }
}

}  // namespace
}  // namespace quire::cli
