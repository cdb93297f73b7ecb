// The parts of a request's target.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace quire::server {

// Malformed escapes stay as they are.
std::string percent_decoded(std::string_view text);
// The value of a name in "a=1&b=2", as sent; nullopt where the name is not.
std::optional<std::string_view> query_value(std::string_view query, std::string_view name);

}  // namespace quire::server
