#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <map>

#include "text/utf8.h"

namespace quire::text {
namespace {

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// Other_Alphabetic outside of L, M and Nl: the circled and squared letters.
bool is_alphabetic_symbol(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

uint16_t classify(char32_t c) {
  int bits = 0;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      bits = kLetter | kWord;
      break;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      bits = kMark | kWord;
      break;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
      bits = kNumber | kWord;
      break;
    case UTF8PROC_CATEGORY_NO:
      bits = kNumber;
      break;
    case UTF8PROC_CATEGORY_PC:
      bits = kPunctuation | kWord;
      break;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      bits = kPunctuation;
      break;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
      bits = kSymbol;
      break;
    default:
      break;
  }
  if (is_white_space(c)) bits |= kSpace;
  if (is_alphabetic_symbol(c) || c == 0x200C || c == 0x200D) bits |= kWord;
  if (c == '\r' || c == '\n') bits |= kNewline;
  if (c < 0x80 && (bits & kSymbol) != 0) bits |= kAsciiSymbol;
  return static_cast<uint16_t>(bits);
}

}  // namespace

const CharacterTable& CharacterTable::get() {
  static const CharacterTable table;
  return table;
}

CharacterTable::CharacterTable() {
  std::map<std::array<uint16_t, 256>, uint16_t> known;
  for (char32_t page = 0; page < page_of_.size(); ++page) {
    std::array<uint16_t, 256> bits{};
    for (char32_t i = 0; i < bits.size(); ++i) bits[i] = classify(page << 8 | i);
    const auto [entry, added] = known.emplace(bits, static_cast<uint16_t>(known.size()));
    if (added) pages_.insert(pages_.end(), bits.begin(), bits.end());
    page_of_[page] = entry->second;
  }
}

const ByteAlphabet& ByteAlphabet::get() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

ByteAlphabet::ByteAlphabet() {
  byte_of_.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const char32_t character = printable ? static_cast<char32_t>(byte) : next++;
    character_of_[static_cast<size_t>(byte)] = character;
    byte_of_[character] = static_cast<int16_t>(byte);
  }
}

bool ByteAlphabet::to_bytes(std::string_view token, std::string& bytes) const {
  bytes.clear();
  for (size_t i = 0; i < token.size();) {
    const CodePoint point = decode_code_point(token.data() + i);
    const int value = byte(point.value);
    if (value < 0) return false;
    bytes.push_back(static_cast<char>(value));
    i += point.length;
  }
  return true;
}

int terminal_width(char32_t code_point) {
  return utf8proc_charwidth(static_cast<utf8proc_int32_t>(code_point));
}

}  // namespace quire::text
