#include "server/url.h"

#include <algorithm>

#include "base/hex.h"

namespace quire::server {

std::optional<AbsoluteTarget> absolute_target(std::string_view target) {
  const size_t colon = target.find("://");
  if (colon == std::string_view::npos) return std::nullopt;
  // A proxy that ends TLS may pass on the scheme that it was asked with.
  const auto is_scheme = [&](std::string_view name) {
    return std::ranges::equal(target.substr(0, colon), name, {},
                              [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  };
  if (!is_scheme("http") && !is_scheme("https")) return std::nullopt;
  target.remove_prefix(colon + 3);
  const size_t end = std::min(target.find_first_of("/?#"), target.size());
  return AbsoluteTarget{target.substr(0, end), target.substr(end)};
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0;
    out.push_back(escape ? static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2])) : text[i]);
    if (escape) i += 2;
  }
  return out;
}

std::optional<std::string_view> query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const size_t equals = pair.find('=');
    if (pair.substr(0, equals) != name) continue;
    return equals == std::string_view::npos ? std::string_view() : pair.substr(equals + 1);
  }
  return std::nullopt;
}

}  // namespace quire::server
