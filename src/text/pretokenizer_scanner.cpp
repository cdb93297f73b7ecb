// The expressions that nearly every byte-level vocabulary uses, as hand-written scanners: one look at each character,
// no backtracking, no recursion. Each is proven against PCRE2 by a randomised test.
#include <array>
#include <optional>

#include "text/pretokenizer.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace quire::text {

namespace {

enum class Contractions {
  kLowerCase,       // 's
  kAsciiCase,       // '[sS]
  kUnicodeFolding,  // (?i:'s): U+017F folds to s
};

struct Character {
  char32_t value = 0;
  uint32_t length = 0;  // 0: the end of the text
  uint16_t classes = 0;

  bool is(int any_of) const { return (classes & any_of) != 0; }
};

class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text), table_(CharacterTable::get()) {}

  Character at(size_t position) const {
    if (position >= text_.size()) return {};
    const CodePoint point = decode_code_point(text_.data() + position);
    return {point.value, point.length, table_.classes(point.value)};
  }
  // End of the run of characters of these classes that begins at `position`.
  size_t run_of(int any_of, size_t position) const {
    while (true) {
      const Character c = at(position);
      if (c.length == 0 || !c.is(any_of)) return position;
      position += c.length;
    }
  }
  size_t run_of_none(int none_of, size_t position) const {
    while (true) {
      const Character c = at(position);
      if (c.length == 0 || c.is(none_of)) return position;
      position += c.length;
    }
  }
  size_t run_of_at_most(int any_of, size_t position, int count) const {
    for (; count > 0; --count) {
      const Character c = at(position);
      if (c.length == 0 || !c.is(any_of)) return position;
      position += c.length;
    }
    return position;
  }
  std::string_view text() const { return text_; }

 private:
  std::string_view text_;
  const CharacterTable& table_;
};

// The letter a character counts as in a contraction; 0 for none.
char fold(const Character& c, Contractions mode) {
  if (c.value >= 'a' && c.value <= 'z') return static_cast<char>(c.value);
  if (mode == Contractions::kLowerCase) return 0;
  if (c.value >= 'A' && c.value <= 'Z') return static_cast<char>(c.value - 'A' + 'a');
  if (mode == Contractions::kUnicodeFolding && c.value == 0x17F) return 's';
  return 0;
}

// 's 't 're 've 'm 'll 'd at `position`: the end, or `position` when there is none.
size_t match_contraction(const Cursor& cursor, size_t position, Contractions mode) {
  if (cursor.at(position).value != '\'') return position;
  const Character first = cursor.at(position + 1);
  const char letter = fold(first, mode);
  const size_t after = position + 1 + first.length;
  switch (letter) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return after;
    case 'r':
    case 'v':
    case 'l': {
      const Character second = cursor.at(after);
      const char wanted = letter == 'l' ? 'l' : 'e';
      return fold(second, mode) == wanted ? after + second.length : position;
    }
    default:
      return position;
  }
}

// \s+(?!\S)|\s+ : all of a run at the end of the text; elsewhere all but its last character, which the next piece may
// want, unless it is alone. REQUIRES: white space at `position`.
size_t match_spaces(const Cursor& cursor, size_t position) {
  const size_t end = cursor.run_of(kSpace, position);
  if (end == cursor.text().size()) return end;
  const size_t last = previous_code_point(cursor.text(), end);
  return last > position ? last : end;
}

struct Gpt2Scanner {
  size_t next(const Cursor& cursor, size_t position) const {
    if (const size_t end = match_contraction(cursor, position, Contractions::kLowerCase); end > position) return end;
    Character c = cursor.at(position);
    size_t begin = position;
    if (c.value == ' ') {
      const Character following = cursor.at(position + 1);
      if (following.length > 0 && !following.is(kSpace)) {
        begin = position + 1;
        c = following;
      }
    }
    if (c.is(kLetter)) return cursor.run_of(kLetter, begin);
    if (c.is(kNumber)) return cursor.run_of(kNumber, begin);
    if (!c.is(kSpace)) return cursor.run_of_none(kSpace | kLetter | kNumber, begin);
    return match_spaces(cursor, position);
  }
};

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
// with its variations.
struct Cl100kScanner {
  Contractions contractions = Contractions::kUnicodeFolding;
  int max_digits = 3;
  int word_classes = kLetter;  // with kMark: marks belong to words

  size_t next(const Cursor& cursor, size_t position) const {
    if (const size_t end = match_contraction(cursor, position, contractions); end > position) return end;
    const Character c = cursor.at(position);
    if (c.is(word_classes)) return cursor.run_of(word_classes, position);
    if (!c.is(kNewline | kLetter | kNumber)) {
      const size_t begin = position + c.length;
      if (const size_t end = cursor.run_of(word_classes, begin); end > begin) return end;
    }
    if (c.is(kNumber)) return cursor.run_of_at_most(kNumber, position, max_digits);
    const int not_symbol = kSpace | kNumber | word_classes;
    const size_t begin = c.value == ' ' ? position + 1 : position;
    if (const size_t end = cursor.run_of_none(not_symbol, begin); end > begin) return cursor.run_of(kNewline, end);
    return match_spaces_or_lines(cursor, position);
  }

 private:
  // \s*[\r\n]+ first: through the last line break of the run of white space.
  static size_t match_spaces_or_lines(const Cursor& cursor, size_t position) {
    const size_t end = cursor.run_of(kSpace, position);
    const size_t line_break = cursor.text().substr(position, end - position).find_last_of("\r\n");
    if (line_break != std::string_view::npos) return position + line_break + 1;
    return match_spaces(cursor, position);
  }
};

template <typename Scanner>
class ScannerPattern final : public Pattern {
 public:
  explicit ScannerPattern(Scanner scanner) : scanner_(scanner) {}

  void find(std::string_view text, std::vector<PatternSpan>& spans) const override {
    const Cursor cursor(text);
    for (size_t position = 0; position < text.size();) {
      const size_t end = scanner_.next(cursor, position);
      spans.push_back({position, end, true});
      position = end;
    }
  }

 private:
  Scanner scanner_;
};

bool consume(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::optional<Cl100kScanner> parse_cl100k(std::string_view regex) {
  Cl100kScanner scanner;
  if (consume(regex, R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|)")) {
    scanner.contractions = Contractions::kUnicodeFolding;
  } else if (consume(regex, R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|)")) {
    scanner.contractions = Contractions::kAsciiCase;
  } else {
    return std::nullopt;
  }
  std::string_view symbols = R"( ?[^\s\p{L}\p{N}]+[\r\n]*|)";
  if (consume(regex, R"([^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|)")) {
    scanner.word_classes = kLetter | kMark;
    symbols = R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)";
  } else if (!consume(regex, R"([^\r\n\p{L}\p{N}]?\p{L}+|)")) {
    return std::nullopt;
  }
  if (consume(regex, R"(\p{N}{1,3}|)")) {
    scanner.max_digits = 3;
  } else if (consume(regex, R"(\p{N}|)")) {
    scanner.max_digits = 1;
  } else {
    return std::nullopt;
  }
  if (!consume(regex, symbols) || regex != R"(\s*[\r\n]+|\s+(?!\S)|\s+)") return std::nullopt;
  return scanner;
}

}  // namespace

std::unique_ptr<Pattern> make_scanner_pattern(std::string_view regex) {
  if (regex == kGpt2Regex) return std::make_unique<ScannerPattern<Gpt2Scanner>>(Gpt2Scanner{});
  if (const auto scanner = parse_cl100k(regex)) {
    return std::make_unique<ScannerPattern<Cl100kScanner>>(*scanner);
  }
  return nullptr;
}

}  // namespace quire::text
