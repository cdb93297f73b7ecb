// JSON written piece by piece, for parts of answers that would take many times their length as values in memory.
#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace quire::server {

// With its quotes. REQUIRES: UTF-8.
void append_json(std::string& out, std::string_view text);
// As few digits as give the same number again; always one that is read as a fraction. REQUIRES: finite.
void append_json(std::string& out, double number);

// As few digits as give the same float again. REQUIRES: finite.
inline void append_json(std::string& out, float number) {
  char digits[24];
  out.append(digits, std::to_chars(digits, digits + sizeof(digits), number).ptr);
}

template <std::integral Number>
void append_json(std::string& out, Number number) {
  char digits[24];
  out.append(digits, std::to_chars(digits, digits + sizeof(digits), number).ptr);
}

// [a,b,...], without brackets: what `write` appends for each, with commas between them.
template <typename Range, typename Write>
void append_json_list(std::string& out, const Range& range, Write write) {
  bool first = true;
  for (const auto& entry : range) {
    if (!first) out += ',';
    first = false;
    write(entry);
  }
}

}  // namespace quire::server
