// The parts of a request's target.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace quire::server {

// A target in absolute form, "http://host:8000/v1/models?a=b" (RFC 9112, section 3.2.2), which proxies send and every
// server must take.
struct AbsoluteTarget {
  std::string_view authority;       // "host:8000"; may be anything that has no '/', '?' or '#'
  std::string_view path_and_query;  // empty where nothing stands behind the authority
};
// nullopt: it is in another form.
std::optional<AbsoluteTarget> absolute_target(std::string_view target);

// Malformed escapes stay as they are.
std::string percent_decoded(std::string_view text);
// The value of a name in "a=1&b=2", as sent; nullopt where the name is not.
std::optional<std::string_view> query_value(std::string_view query, std::string_view name);

}  // namespace quire::server
