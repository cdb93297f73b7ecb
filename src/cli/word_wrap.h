// Breaks lines of streamed text between words, where a terminal would break inside them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quire::cli {

// Text goes in as it comes and comes out as it is to be written: the same, but that a space before a word that does not
// fit the line is a line's end. A word comes out when it is complete. Left alone are fenced code, lines that are
// indented by a tab or four spaces, rows of tables ('|'), and words longer than a line. Scripts without spaces (wide
// characters) break between any two characters.
class WordWrap {
 public:
  explicit WordWrap(int columns) : columns_(columns) {}  // of the terminal; 0: lines are not broken

  // May change while text comes.
  void set_columns(int columns) { columns_ = columns; }
  // What of `text`, and of what was held back, can be written now. UTF-8, which may be cut anywhere.
  std::string add(std::string_view text);
  // What is held back: the text has ended.
  std::string finish();

 private:
  void take(std::string_view character, char32_t code_point, std::string& out);
  void end_line(std::string& out);
  void place_word(std::string& out);
  bool is_literal_line() const;

  int columns_;
  int column_ = 0;           // where the next character goes
  std::string cut_;          // the beginning of a character
  std::string spaces_;       // since the last word
  std::string word_;         // not written yet
  int word_width_ = 0;       // columns
  bool wide_ = false;        // the word is one wide character
  bool after_wide_ = false;  // so was the one before it
  std::string beginning_;    // of the line, its first characters
  bool fenced_ = false;      // the line is of a block of code between fences
};

}  // namespace quire::cli
