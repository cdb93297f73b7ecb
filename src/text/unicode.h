// Classes of characters that pre-tokenizers ask for, as one table of bits. General categories are utf8proc's (Unicode
// 15).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::text {

enum CharacterClass : uint16_t {
  kLetter = 1 << 0,       // \p{L}
  kNumber = 1 << 1,       // \p{N}
  kSpace = 1 << 2,        // White_Space: what Oniguruma's and Rust's \s are
  kMark = 1 << 3,         // \p{M}
  kPunctuation = 1 << 4,  // \p{P}
  kSymbol = 1 << 5,       // \p{S}
  kWord = 1 << 6,         // Alphabetic, M, Nd, Pc and Join_Control: Rust's \w
  kNewline = 1 << 7,      // CR and LF
  kAsciiSymbol = 1 << 8,  // $+<=>^`|~: punctuation to some, though not \p{P}
};

class CharacterTable {
 public:
  // The one immutable table, made on first use.
  static const CharacterTable& get();

  // CharacterClass bits. REQUIRES: code_point <= 0x10FFFF.
  uint16_t classes(char32_t code_point) const {
    return pages_[page_of_[code_point >> 8] * size_t{256} + (code_point & 0xFF)];
  }
  bool is(char32_t code_point, int any_of) const { return (classes(code_point) & any_of) != 0; }

 private:
  CharacterTable();
  std::array<uint16_t, 0x1100> page_of_{};
  std::vector<uint16_t> pages_;  // equal pages are kept once
};

// Columns that a character takes in a terminal: 0 (it combines, or is none), 1 or 2.
int terminal_width(char32_t code_point);

// The alphabet of byte-level BPE (GPT-2): every byte is a printable character, itself where it is one.
class ByteAlphabet {
 public:
  static const ByteAlphabet& get();

  char32_t character(uint8_t byte) const { return character_of_[byte]; }
  // -1: the character stands for no byte.
  int byte(char32_t character) const { return character < 0x144 ? byte_of_[character] : -1; }

  // "Ġthe" -> " the". False (and `bytes` in no defined state) when a character is none of the alphabet's.
  // REQUIRES: valid UTF-8.
  bool to_bytes(std::string_view token, std::string& bytes) const;

 private:
  ByteAlphabet();
  std::array<char32_t, 256> character_of_{};
  std::array<int16_t, 0x144> byte_of_{};
};

}  // namespace quire::text
