// Names out of untrusted files, made fit for a message.
#pragma once

#include <string>
#include <string_view>

#include <fmt/format.h>

namespace quire::checkpoint {

// In double quotes, control characters and broken UTF-8 escaped, at most 96 bytes of it.
inline std::string in_quotes(std::string_view text) {
  constexpr size_t kMostBytes = 96;
  if (text.size() <= kMostBytes) return fmt::format("{:?}", text);
  return fmt::format("{:?}...", text.substr(0, kMostBytes));
}

}  // namespace quire::checkpoint
