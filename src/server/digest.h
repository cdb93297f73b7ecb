// SHA-256.
#pragma once

#include <string>
#include <string_view>

namespace quire::server {

std::string sha256(std::string_view text);  // 32 bytes
std::string hex(std::string_view bytes);

}  // namespace quire::server
