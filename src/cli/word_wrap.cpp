#include "cli/word_wrap.h"

#include <utility>

#include "text/unicode.h"
#include "text/utf8.h"

namespace quire::cli {
namespace {

constexpr size_t kIndentOfCode = 4;
constexpr size_t kBeginning = 8;  // characters that tell what kind of line it is

bool is_fence(std::string_view line) {
  const size_t first = line.find_first_not_of(' ');
  if (first == std::string_view::npos || first >= kIndentOfCode) return false;
  const std::string_view mark = line.substr(first, 3);
  return mark == "```" || mark == "~~~";
}

}  // namespace

bool WordWrap::is_literal_line() const {
  return fenced_ || beginning_.starts_with("    ") || beginning_.starts_with('\t') || beginning_.starts_with('|') ||
         is_fence(beginning_);
}

std::string WordWrap::add(std::string_view text) {
  if (columns_ <= 0) return finish() + std::string(text);
  std::string out;
  const std::string whole = std::exchange(cut_, {}) + std::string(text);
  for (size_t at = 0; at < whole.size();) {
    const text::Utf8Sequence sequence = text::next_utf8_sequence(whole, at);
    const std::string_view bytes = std::string_view(whole).substr(at, sequence.length);
    if (sequence.state == text::Utf8State::kIncomplete) {
      cut_ = bytes;
      break;
    }
    const bool valid = sequence.state == text::Utf8State::kWellFormed;
    take(bytes, valid ? text::decode_code_point(bytes.data()).value : U'\uFFFD', out);
    at += sequence.length;
  }
  return out;
}

std::string WordWrap::finish() {
  std::string out;
  place_word(out);
  out += std::exchange(spaces_, {});
  out += std::exchange(cut_, {});
  return out;
}

void WordWrap::take(std::string_view character, char32_t code_point, std::string& out) {
  if (code_point == U'\n') return end_line(out);
  if (beginning_.size() < kBeginning) beginning_ += character;
  if (is_literal_line()) {
    place_word(out);
    out += std::exchange(spaces_, {});
    out += character;
    return;
  }
  if (code_point == U' ' || code_point == U'\t') {
    place_word(out);
    spaces_ += character;
    return;
  }
  const int width = text::terminal_width(code_point);
  if (width == 2) place_word(out);
  wide_ = width == 2;
  word_ += character;
  word_width_ += width;
  if (wide_ || word_width_ >= columns_) place_word(out);
}

void WordWrap::end_line(std::string& out) {
  place_word(out);
  spaces_.clear();  // nobody sees them
  out += '\n';
  if (is_fence(beginning_)) fenced_ = !fenced_;
  beginning_.clear();
  column_ = 0;
}

void WordWrap::place_word(std::string& out) {
  if (word_.empty()) return;
  const int needed = static_cast<int>(spaces_.size()) + word_width_;
  const bool fits = column_ == 0 || column_ + needed <= columns_;
  const bool may_break = !spaces_.empty() || wide_ || after_wide_;
  if (fits) {
    out += spaces_;
    column_ += needed;
  } else if (may_break) {
    out += '\n';
    column_ = word_width_;
  } else {  // the rest of a word that is longer than a line: the terminal breaks it
    column_ = (column_ + needed) % columns_;
  }
  out += word_;
  spaces_.clear();
  word_.clear();
  word_width_ = 0;
  after_wide_ = std::exchange(wide_, false);
}

}  // namespace quire::cli
