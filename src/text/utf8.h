// UTF-8 as the Unicode Standard defines it (table 3-7), and what stands in for what is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::text {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8State {
  kWellFormed,
  kIllFormed,   // a maximal ill-formed subpart: one U+FFFD in a lossy conversion
  kIncomplete,  // the text ends inside a sequence that more bytes may complete
};

struct Utf8Sequence {
  size_t length = 0;  // bytes, at least 1
  Utf8State state = Utf8State::kWellFormed;
};

// The sequence at `position`. REQUIRES: position < text.size().
Utf8Sequence next_utf8_sequence(std::string_view text, size_t position);

bool is_valid_utf8(std::string_view text);

// Appends `text` to `out` with U+FFFD for each maximal ill-formed subpart (an incomplete end is one). Concatenating
// conversions of parts that are cut between sequences equals the conversion of the whole.
void append_lossy_utf8(std::string_view text, std::string& out);

// How many bytes at the end of `text` are the beginning of a sequence that more bytes may complete: 0 to 3.
size_t incomplete_utf8_suffix(std::string_view text);

struct CodePoint {
  char32_t value = 0;
  uint32_t length = 0;  // bytes
};

// REQUIRES: well-formed UTF-8 at `bytes`.
inline CodePoint decode_code_point(const char* bytes) {
  const auto byte = [bytes](int i) { return static_cast<char32_t>(static_cast<unsigned char>(bytes[i])); };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

// Start of the code point that ends at `position`. REQUIRES: well-formed text, 0 < position <= text.size().
inline size_t previous_code_point(std::string_view text, size_t position) {
  --position;
  while (position > 0 && (static_cast<unsigned char>(text[position]) & 0xC0) == 0x80) --position;
  return position;
}

// REQUIRES: a Unicode scalar value.
void append_code_point(char32_t value, std::string& out);

}  // namespace quire::text
