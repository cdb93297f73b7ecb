#include "grammar/open_character.h"

namespace quire::grammar {

size_t OpenCharacter::place() const {
  if (more_ == 1) return 0;
  const size_t narrowed = least_ > 0x80 ? 1 : most_ < 0xBF ? 2 : 0;
  return (more_ == 2 ? 1 : 4) + narrowed;
}

bool OpenCharacter::push(uint8_t byte) {
  if (more_ > 0) {
    const bool fits = byte >= least_ && byte <= most_;
    more_ = fits ? more_ - 1 : 0;
    least_ = 0x80;
    most_ = 0xBF;
    if (!fits) static_cast<void>(push(byte));
    return fits;
  }
  if (byte < 0x80) return true;
  if (byte < 0xC2 || byte > 0xF4) return false;
  more_ = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
  if (byte == 0xE0) least_ = 0xA0;
  if (byte == 0xED) most_ = 0x9F;
  if (byte == 0xF0) least_ = 0x90;
  if (byte == 0xF4) most_ = 0x8F;
  return true;
}

bool OpenCharacter::push(std::string_view bytes) {
  bool well_formed = true;
  for (const char byte : bytes) well_formed &= push(static_cast<uint8_t>(byte));
  return well_formed;
}

ContinuingTokens continuing_tokens(const OpenCharacter& open, std::span<const std::string> tokens) {
  constexpr size_t kWordBits = 32;
  ContinuingTokens found;
  found.continuing.assign((tokens.size() + kWordBits - 1) / kWordBits, 0);
  found.within = found.continuing;
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string& token = tokens[id];
    OpenCharacter place = open;
    if (token.empty() || !place.push(token)) continue;
    const uint32_t bit = uint32_t{1} << (id % kWordBits);
    found.continuing[id / kWordBits] |= bit;
    // All but a character's first byte say so themselves.
    bool is_within = true;
    for (const char byte : token) is_within &= (static_cast<uint8_t>(byte) & 0xC0) == 0x80;
    if (is_within) found.within[id / kWordBits] |= bit;
  }
  return found;
}

}  // namespace quire::grammar
