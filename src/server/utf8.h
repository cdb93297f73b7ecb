// Whether bytes from outside may go into JSON as they are.
#pragma once

#include <string_view>

namespace quire::server {

inline bool is_utf8_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

// Whole, shortest-form characters that are no surrogates (RFC 3629).
bool is_utf8(std::string_view bytes);

}  // namespace quire::server
