// A character of UTF-8 that a text ends within, and the tokens that go on with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire::grammar {

class OpenCharacter {
 public:
  static constexpr size_t kNumPlaces = 7;

  bool is_open() const { return more_ > 0; }
  // Which of the places within characters it is, in [0, kNumPlaces). REQUIRES: is_open().
  size_t place() const;
  // Goes on with what a text is followed by. False: it is not well-formed, and what comes next begins anew.
  bool push(std::string_view bytes);

 private:
  bool push(uint8_t byte);

  uint8_t more_ = 0;  // bytes that the character still has
  uint8_t least_ = 0x80;
  uint8_t most_ = 0xBF;  // of the next one
};

// Bits of tokens.
struct ContinuingTokens {
  std::vector<uint32_t> continuing;  // that go on with the character, and perhaps with others behind it
  std::vector<uint32_t> within;      // that are part of it
};

ContinuingTokens continuing_tokens(const OpenCharacter& open, std::span<const std::string> tokens);

}  // namespace quire::grammar
