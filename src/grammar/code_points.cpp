#include "grammar/code_points.h"

#include <algorithm>

#include <fmt/format.h>

#include "text/utf8.h"

namespace quire::grammar {
namespace {

std::string escaped(char32_t point) {
  const auto value = static_cast<uint32_t>(point);
  // Not \x: it takes as many digits as follow.
  return value <= 0xFFFF ? fmt::format("\\u{:04x}", value) : fmt::format("\\U{:08x}", value);
}

void append_in_notation(char32_t point, std::string& out) {
  if (is_alphanumeric(point)) {
    out += static_cast<char>(point);
  } else {
    out += escaped(point);
  }
}

std::string class_of(const CodePoints& set) {
  std::string out = "[";
  for (const auto& [first, last] : set.ranges()) {
    append_in_notation(first, out);
    if (first == last) continue;
    out += '-';
    append_in_notation(last, out);
  }
  return out + ']';
}

// What a JSON string writes behind a backslash.
constexpr std::pair<char32_t, char> kShortEscapes[] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                                                       {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};

const CodePoints& escaped_in_json() {
  static const CodePoints points{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  return points;
}

std::string json_escape(char32_t point) {
  for (const auto& [character, letter] : kShortEscapes) {
    if (character == point) return std::string("\\") + letter;
  }
  return fmt::format("\\u{:04x}", static_cast<uint32_t>(point));
}

}  // namespace

CodePoints::CodePoints(std::initializer_list<Range> ranges) : ranges_(ranges) {
  normalise();
}

void CodePoints::normalise() {
  std::sort(ranges_.begin(), ranges_.end());
  std::vector<Range> out;
  const auto append = [&out](char32_t first, char32_t last) {
    if (first > last) return;
    if (!out.empty() && first <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, last);
    } else {
      out.emplace_back(first, last);
    }
  };
  for (const auto& [first, last] : ranges_) {
    append(first, std::min<char32_t>(last, kFirstSurrogate - 1));
    append(std::max<char32_t>(first, kLastSurrogate + 1), std::min(last, kLastCodePoint));
  }
  ranges_ = std::move(out);
}

void CodePoints::add(char32_t first, char32_t last) {
  ranges_.emplace_back(first, last);
  normalise();
}

void CodePoints::add(const CodePoints& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  normalise();
}

CodePoints CodePoints::complement() const {
  CodePoints out;
  char32_t next = 0;
  for (const auto& [first, last] : ranges_) {
    if (first > next) out.ranges_.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLastCodePoint) out.ranges_.emplace_back(next, kLastCodePoint);
  out.normalise();  // takes the surrogates out
  return out;
}

CodePoints CodePoints::without(const CodePoints& other) const {
  CodePoints not_this = complement();
  not_this.add(other);
  return not_this.complement();
}

bool CodePoints::contains(char32_t point) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), Range{point, kLastCodePoint});
  return after != ranges_.begin() && std::prev(after)->first <= point && point <= std::prev(after)->second;
}

bool CodePoints::intersects(const CodePoints& other) const {
  auto mine = ranges_.begin();
  auto its = other.ranges_.begin();
  while (mine != ranges_.end() && its != other.ranges_.end()) {
    if (mine->second < its->first) {
      ++mine;
    } else if (its->second < mine->first) {
      ++its;
    } else {
      return true;
    }
  }
  return false;
}

std::string ebnf_of(const CodePoints& set, Spelling spelling) {
  if (spelling == Spelling::kText || set.empty()) return class_of(set);
  std::string out;
  const auto either = [&out](const std::string& alternative) {
    if (!out.empty()) out += " | ";
    out += alternative;
  };
  // Where there is a choice, what needs no backslash alone: masks of the others beside it take a hundred times as long.
  const CodePoints plain = set.without(escaped_in_json());
  if (!plain.empty()) return class_of(plain);
  CodePoints letters;
  for (const auto& [character, letter] : kShortEscapes) {
    if (set.contains(character)) letters.add(static_cast<char32_t>(letter), static_cast<char32_t>(letter));
  }
  if (!letters.empty()) either("\"\\\\\" " + class_of(letters));
  for (char32_t point = 0; point < 0x20; ++point) {
    if (!set.contains(point) || json_escape(point).size() == 2) continue;
    either(fmt::format("\"\\\\{}\"", json_escape(point).substr(1)));
  }
  return "(" + out + ")";
}

std::string ebnf_of(std::string_view text, Spelling spelling) {
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const text::CodePoint point = text::decode_code_point(text.data() + at);
    at += point.length;
    if (spelling == Spelling::kJson && escaped_in_json().contains(point.value)) {
      for (const char c : json_escape(point.value)) append_in_notation(static_cast<unsigned char>(c), out);
    } else {
      append_in_notation(point.value, out);
    }
  }
  return out + '"';
}

}  // namespace quire::grammar
