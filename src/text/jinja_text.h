// Strings of the template engine: UTF-8 bytes that remember which of them the template's author wrote. Counted and cut
// in Unicode code points, as Python does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::text::jinja {

// Bytes and their runs of trust. Text of one origin (nearly all) costs no more than its bytes.
class Text {
 public:
  Text() = default;
  Text(std::string bytes, bool trusted) : bytes_(std::move(bytes)), first_trusted_(trusted) {}

  const std::string& bytes() const { return bytes_; }
  std::string_view view() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  void append(std::string_view bytes, bool trusted);
  // Bytes [begin, end) of `other` with their trust.
  void append(const Text& other, size_t begin, size_t end);
  void append(const Text& other) { append(other, 0, other.size()); }
  Text slice(size_t begin, size_t end) const;

  bool trusted_at(size_t offset) const;
  // Every byte is trusted (true of the empty text).
  bool fully_trusted() const { return flips_.empty() && (first_trusted_ || bytes_.empty()); }
  // The end of the run that holds `offset`.
  size_t run_end(size_t offset) const;
  size_t overhead_bytes() const { return flips_.capacity() * sizeof(size_t); }

 private:
  bool last_trusted() const { return first_trusted_ ^ ((flips_.size() & 1) != 0); }

  std::string bytes_;
  bool first_trusted_ = true;
  std::vector<size_t> flips_;  // rising offsets where trust changes
};

// The code point at `offset`, which it moves past it. An ill-formed byte counts as one code point U+FFFD.
char32_t next_code_point(std::string_view text, size_t& offset);
// The offset where the code point that ends at `offset` begins. REQUIRES: offset > 0.
size_t previous_boundary(std::string_view text, size_t offset);
void append_utf8(std::string& out, char32_t code_point);
// U+FFFD in place of every ill-formed byte.
std::string to_well_formed(std::string_view text);
// Its beginning, cut between code points. REQUIRES: well-formed text.
std::string_view clip(std::string_view text, size_t most_bytes);
std::string_view trim_spaces_left(std::string_view text);
std::string_view trim_spaces_right(std::string_view text);
inline std::string_view trim_spaces(std::string_view text) {
  return trim_spaces_left(trim_spaces_right(text));
}
size_t count_code_points(std::string_view text);
// Byte offset of code point `index` (the size of the text when there are fewer).
size_t code_point_offset(std::string_view text, size_t index);

// str.isspace of one code point.
bool is_space(char32_t code_point);
// A line boundary of str.splitlines.
bool is_line_break(char32_t code_point);
bool is_alphabetic(char32_t code_point);
bool is_decimal_digit(char32_t code_point);
bool is_numeric(char32_t code_point);  // str.isalnum's digits beside letters
bool is_lower(char32_t code_point);
bool is_upper(char32_t code_point);
bool is_printable(char32_t code_point);
// Full upper case ("ß" gives "SS"), appended.
void append_upper(std::string& out, char32_t code_point);
void append_lower(std::string& out, char32_t code_point);
void append_title(std::string& out, char32_t code_point);

// First occurrence at or after `from`, npos when there is none; time linear in the lengths whatever they spell.
class Finder {
 public:
  explicit Finder(std::string_view needle);
  size_t find(std::string_view haystack, size_t from) const;

 private:
  std::string_view needle_;
  std::vector<uint32_t> failure_;  // Knuth-Morris-Pratt, for needles where plain search could be quadratic
};

// Last occurrence, in the same time.
class ReverseFinder {
 public:
  explicit ReverseFinder(std::string_view needle);
  size_t find(std::string_view haystack) const;

 private:
  std::string_view needle_;
  std::string reversed_;  // empty where plain search is used
  std::vector<uint32_t> failure_;
};

// repr(str): quotes, escapes, printable text as it is.
std::string python_repr(std::string_view text);
// json.dumps(str, ensure_ascii=False).
std::string json_quote(std::string_view text);
// repr(float).
std::string python_float(double value);

}  // namespace quire::text::jinja
