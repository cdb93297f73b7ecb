// Sets of characters, and how grammars write them.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::grammar {

inline constexpr char32_t kLastCodePoint = 0x10FFFF;
inline constexpr char32_t kFirstSurrogate = 0xD800;
inline constexpr char32_t kLastSurrogate = 0xDFFF;

// Of ASCII: a letter or a digit.
constexpr bool is_alphanumeric(char32_t point) {
  return (point >= '0' && point <= '9') || (point >= 'A' && point <= 'Z') || (point >= 'a' && point <= 'z');
}

// Code points as ranges in rising order that neither touch nor overlap; never surrogates.
class CodePoints {
 public:
  using Range = std::pair<char32_t, char32_t>;  // first and last

  CodePoints() = default;
  CodePoints(std::initializer_list<Range> ranges);

  void add(char32_t first, char32_t last);
  void add(const CodePoints& other);
  CodePoints complement() const;  // of all Unicode scalar values
  CodePoints without(const CodePoints& other) const;
  bool contains(char32_t point) const;
  bool intersects(const CodePoints& other) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }

  bool operator==(const CodePoints&) const = default;

 private:
  void normalise();

  std::vector<Range> ranges_;
};

// How characters stand in the answer.
enum class Spelling {
  kText,  // as they are
  kJson,  // within a JSON string: each in one way, the shortest; of a set only what needs no backslash, if there is any
};

// A character of the set, in the grammar's notation. Empty set: nothing matches.
std::string ebnf_of(const CodePoints& set, Spelling spelling);
// This text, the same way. REQUIRES: well-formed UTF-8.
std::string ebnf_of(std::string_view text, Spelling spelling);

}  // namespace quire::grammar
