// Addresses of http and https, as far as our clients meet them: what a user names, what a redirect says.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace quire::net {

struct Url {
  bool https = true;
  std::string host;  // lower case; an IPv6 address in brackets
  uint16_t port = 443;
  std::string target = "/";  // path and query

  // "https://huggingface.co", with the port where it is not the scheme's own.
  std::string origin() const;
  std::string text() const { return origin() + target; }
};

bool same_origin(const Url& a, const Url& b);

// An absolute address without a user's name in it; a fragment is dropped. Errors: invalid_argument, saying what is
// wrong.
Result<Url> parse_url(std::string_view text);

// What `reference` (a Location, a Link) means in an answer from `base`. Errors: invalid_argument.
Result<Url> resolve_reference(const Url& base, std::string_view reference);

// Everything but letters, digits and "-._~" as %XX; slashes stay where `keep_slashes`.
std::string percent_encoded(std::string_view text, bool keep_slashes);

}  // namespace quire::net
