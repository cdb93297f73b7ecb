// SentencePiece's compiled normalisation rules ("precompiled charsmap"): a little-endian size, a double array of that
// many bytes (Darts' format, of 32-bit units) from strings to offsets, and the replacements, each ending in a NUL.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire::text {

class PrecompiledCharsmap {
 public:
  // Errors: invalid_argument for a size that is not the file's, a replacement that is not valid UTF-8.
  static Result<PrecompiledCharsmap> parse(std::string_view bytes);

  bool empty() const { return units_.empty(); }

  struct Match {
    size_t length = 0;  // bytes of text; 0: no rule
    std::string_view replacement;
  };
  // The rule of the longest, the shortest string that `text` begins with. Wherever the array points outside of itself
  // or of the replacements there is no rule.
  Match longest(std::string_view text) const { return find(text, /*first=*/false); }
  Match shortest(std::string_view text) const { return find(text, /*first=*/true); }

 private:
  Match find(std::string_view text, bool first) const;
  std::vector<uint32_t> units_;
  std::string replacements_;
};

// Standard base 64 (RFC 4648), padding included. Errors: invalid_argument.
Result<std::string> decode_base64(std::string_view text);

}  // namespace quire::text
