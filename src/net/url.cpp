#include "net/url.h"

#include <algorithm>
#include <charconv>

namespace quire::net {
namespace {

constexpr size_t kMostUrlBytes = 8192;  // signed addresses of content networks have some 1,500

bool is_plain(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return lower(c); });
  return out;
}

// Nothing that could end a request's line, or that a terminal would obey.
bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < '\x7f'; });
}

bool is_host(std::string_view host) {
  if (host.empty() || host.size() > 253) return false;
  if (host.front() == '[') {
    return host.size() > 2 && host.back() == ']' &&
           host.find_first_not_of("0123456789abcdefABCDEF:.", 1) == host.size() - 1;
  }
  return std::all_of(host.begin(), host.end(), [](char c) { return is_plain(c) || c == '.' || c == '-' || c == '_'; });
}

// "host", "host:port", "[::1]:port".
Status read_authority(std::string_view authority, Url& url) {
  if (authority.find('@') != authority.npos) return invalid_argument("a user's name in an address is refused");
  size_t colon = authority.rfind(':');
  if (colon != authority.npos && authority.find(']', colon) != authority.npos) colon = authority.npos;  // within [::1]
  const std::string_view host = authority.substr(0, colon);
  if (!is_host(host)) return invalid_argument("there is no valid host in it");
  url.host = lower(host);
  url.port = url.https ? 443 : 80;
  if (colon == authority.npos) return {};
  const std::string_view port = authority.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), url.port);
  if (error != std::errc() || end != port.data() + port.size() || url.port == 0) {
    return invalid_argument("its port is not a number from 1 to 65535");
  }
  return {};
}

}  // namespace

std::string Url::origin() const {
  std::string out = (https ? "https://" : "http://") + host;
  if (port != (https ? 443 : 80)) out += ":" + std::to_string(port);
  return out;
}

bool same_origin(const Url& a, const Url& b) {
  return a.https == b.https && a.port == b.port && a.host == b.host;
}

Result<Url> parse_url(std::string_view text) {
  if (text.size() > kMostUrlBytes) return invalid_argument("an address of {} bytes is too long", text.size());
  if (!is_printable(text)) return invalid_argument("an address holds blanks or characters that belong into none");
  Url url;
  const std::string scheme = lower(text.substr(0, text.find("://")));
  if (scheme.size() == text.size() || (scheme != "http" && scheme != "https")) {
    return invalid_argument("\"{}\" is no address that begins with https:// or http://", text.substr(0, 200));
  }
  url.https = scheme == "https";
  text.remove_prefix(scheme.size() + 3);
  text = text.substr(0, text.find('#'));
  const size_t end = std::min(text.find_first_of("/?"), text.size());
  QUIRE_RETURN_IF_ERROR(
      read_authority(text.substr(0, end), url).with_prefix(fmt::format("\"{}\": ", text.substr(0, 200))));
  url.target = text.substr(end);
  if (url.target.empty() || url.target.front() != '/') url.target.insert(0, 1, '/');
  return url;
}

Result<Url> resolve_reference(const Url& base, std::string_view reference) {
  if (reference.find("://") != reference.npos && reference.find("://") < reference.find_first_of("/?#")) {
    return parse_url(reference);
  }
  if (reference.starts_with("//")) return parse_url((base.https ? "https:" : "http:") + std::string(reference));
  if (reference.size() > kMostUrlBytes || !is_printable(reference)) {
    return invalid_argument("an address holds blanks or characters that belong into none, or is too long");
  }
  if (const size_t colon = reference.find(':');
      colon != reference.npos && colon < std::min(reference.find_first_of("/?#"), reference.size())) {
    return invalid_argument("\"{}\" is no address of http or https", reference.substr(0, 200));
  }
  Url url = base;
  reference = reference.substr(0, reference.find('#'));
  if (reference.starts_with('/')) {
    url.target = reference;
  } else if (reference.starts_with('?')) {
    url.target = url.target.substr(0, url.target.find('?')) + std::string(reference);
  } else if (!reference.empty()) {
    const std::string path = url.target.substr(0, url.target.find('?'));
    url.target = path.substr(0, path.rfind('/') + 1) + std::string(reference);
  }
  return url;
}

std::string percent_encoded(std::string_view text, bool keep_slashes) {
  std::string out;
  for (const char c : text) {
    if (is_plain(c) || c == '-' || c == '.' || c == '_' || c == '~' || (keep_slashes && c == '/')) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

}  // namespace quire::net
