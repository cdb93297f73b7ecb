#include "text/tokenizer_charsmap.h"

#include "text/utf8.h"

namespace quire::text {
namespace {

// The fields of a unit in Darts' array.
bool has_leaf(uint32_t unit) {
  return (unit >> 8 & 1) == 1;
}
uint32_t label(uint32_t unit) {
  return unit & (1u << 31 | 0xFF);
}
uint32_t offset(uint32_t unit) {
  return unit >> 10 << ((unit & 1u << 9) >> 6);
}
uint32_t leaf_value(uint32_t unit) {
  return unit & ((1u << 31) - 1);
}

constexpr size_t kLongestReplacement = 1024;  // bytes; the longest of Unicode's own has 33

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

uint32_t little_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

}  // namespace

Result<PrecompiledCharsmap> PrecompiledCharsmap::parse(std::string_view bytes) {
  PrecompiledCharsmap map;
  if (bytes.empty()) return map;
  if (bytes.size() < 4) return invalid_argument("{} bytes; expected a size and rules", bytes.size());
  const size_t array_bytes = little_endian(bytes);
  if (array_bytes % 4 != 0 || array_bytes > bytes.size() - 4) {
    return invalid_argument("the array has {} bytes by its size, but {} follow", array_bytes, bytes.size() - 4);
  }
  map.units_.resize(array_bytes / 4);
  for (size_t i = 0; i < map.units_.size(); ++i) map.units_[i] = little_endian(bytes.substr(4 + 4 * i, 4));
  map.replacements_ = bytes.substr(4 + array_bytes);
  if (!is_valid_utf8(map.replacements_)) return invalid_argument("the replacements are not valid UTF-8");
  return map;
}

PrecompiledCharsmap::Match PrecompiledCharsmap::find(std::string_view text, bool first) const {
  Match match;
  if (units_.empty()) return match;
  uint32_t position = offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    position ^= byte;
    if (byte == 0 || position >= units_.size()) break;
    const uint32_t unit = units_[position];
    if (label(unit) != byte) break;
    position ^= offset(unit);
    if (position >= units_.size()) break;
    if (!has_leaf(unit)) continue;
    const uint32_t begin = leaf_value(units_[position]);
    if (begin >= replacements_.size()) break;
    const size_t end = replacements_.find('\0', begin);
    const std::string_view replacement =
        std::string_view(replacements_).substr(begin, end == std::string::npos ? std::string::npos : end - begin);
    // A hostile array could point inside a character, or match a part of one, or multiply a text.
    if (!replacement.empty() && is_continuation(replacement[0])) break;
    if (i + 1 < text.size() && is_continuation(text[i + 1])) continue;
    if (replacement.size() > kLongestReplacement) break;
    match = {i + 1, replacement};
    if (first) break;
  }
  return match;
}

Result<std::string> decode_base64(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  int count = 0;
  size_t padding = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    int value = -1;
    if (c >= 'A' && c <= 'Z') value = c - 'A';
    if (c >= 'a' && c <= 'z') value = c - 'a' + 26;
    if (c >= '0' && c <= '9') value = c - '0' + 52;
    if (c == '+') value = 62;
    if (c == '/') value = 63;
    if (c == '=' && i + 2 >= text.size()) {
      ++padding;
      continue;
    }
    if (value < 0 || padding > 0) return invalid_argument("byte {} is not base 64", i);
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes.push_back(static_cast<char>(bits >> count & 0xFF));
    }
  }
  if (text.size() % 4 != 0) return invalid_argument("{} characters of base 64; expected a multiple of 4", text.size());
  return bytes;
}

}  // namespace quire::text
