#include "server/sites.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include <fmt/format.h>

#include "server/api_error.h"
#include "server/http_server.h"

namespace quire::server {

namespace {

constexpr std::string_view kLoopbackNames[] = {"localhost", "127.0.0.1", "[::1]"};

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

struct Authority {
  std::string host;  // in lower case, an IPv6 address with its brackets
  std::string port;  // empty: none
};

// "host", "host:port", "[::1]:port"; nullopt: none of these.
std::optional<Authority> parse_authority(std::string_view text) {
  const size_t bracket = text.starts_with('[') ? text.find(']') : 0;
  if (bracket == std::string_view::npos) return std::nullopt;
  const size_t colon = text.find(':', bracket);
  const std::string_view host = text.substr(0, colon);
  const std::string_view port = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto in_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
           c == '_';
  };
  const auto in_address = [](char c) {
    return std::isxdigit(static_cast<unsigned char>(c)) != 0 || c == ':' || c == '.';
  };
  const bool is_name = bracket == 0 ? !host.empty() && std::ranges::all_of(host, in_name)
                                    : host.size() > 2 && host.ends_with(']') &&
                                          std::ranges::all_of(host.substr(1, host.size() - 2), in_address);
  if (!is_name || !std::ranges::all_of(port, is_digit)) return std::nullopt;
  return Authority{lower_case(host), std::string(port)};
}

bool has_header(const HttpRequest& request, std::string_view name) {
  return std::ranges::any_of(request.headers, [&](const auto& field) { return lower_case(field.first) == name; });
}

bool has_body(const HttpRequest& request) {
  const std::string_view length = request.header("Content-Length");
  return !request.header("Transfer-Encoding").empty() || (!length.empty() && length != "0");
}

// "application/json" of "Application/JSON; charset=utf-8".
std::string media_type(std::string_view content_type) {
  std::string media = lower_case(content_type.substr(0, content_type.find(';')));
  while (!media.empty() && (media.back() == ' ' || media.back() == '\t')) media.pop_back();
  return media;
}

// The page is one that this server has, whatever a proxy in front speaks.
bool is_own(std::string_view origin, std::string_view host) {
  const size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos) return false;
  const std::string_view usual = origin.starts_with("https:") ? "443" : "80";
  const auto from = parse_authority(origin.substr(scheme + 3));
  const auto to = parse_authority(host);
  const auto port = [&](const Authority& authority) {
    return authority.port.empty() ? usual : std::string_view(authority.port);
  };
  return from && to && from->host == to->host && port(*from) == port(*to);
}

}  // namespace

Status check_allowed_hosts(const std::vector<std::string>& hosts) {
  for (const std::string& host : hosts) {
    const bool is_name = host.find(':') == std::string::npos && parse_authority(host);
    if (host == "*" || is_name || parse_authority("[" + host + "]")) continue;
    return invalid_argument(
        "--allowed-hosts: {} is no name of a host; one looks like chat.example or 2001:db8::1, without a scheme and a "
        "port, or is *.",
        in_quotes(host));
  }
  return {};
}

Sites::Sites(SiteOptions options)
    : options_(std::move(options)),
      every_host_(options_.allowed_hosts.empty()
                      ? options_.listens_at.empty() || !is_loopback(options_.listens_at)
                      : std::ranges::find(options_.allowed_hosts, "*") != options_.allowed_hosts.end()) {}

std::optional<HttpResponse> Sites::screen_host(const HttpRequest& request) const {
  if (every_host_ || !has_header(request, "host")) return std::nullopt;  // without one: HTTP/1.0, and no browser
  const std::string_view given = request.header("Host");
  const auto authority = parse_authority(given);
  const auto is = [&](std::string_view name) {
    return authority && (authority->host == lower_case(name) || authority->host == "[" + lower_case(name) + "]");
  };
  if (is(options_.listens_at) || std::ranges::any_of(kLoopbackNames, is) ||
      std::ranges::any_of(options_.allowed_hosts, is)) {
    return std::nullopt;
  }
  return error_response_at(
      request.path, {403,
                     fmt::format("The request's Host is {}, which is no name that this server goes by: start it with "
                                 "--allowed-hosts and that name, or \"*\" for any.",
                                 in_quotes(given, 80)),
                     "", "", 0});
}

std::optional<HttpResponse> screen_origin(const HttpRequest& request, const Cors& cors) {
  const std::string_view origin = request.header("Origin");
  if (origin.empty() || cors.allows(origin) || is_own(origin, request.header("Host"))) return std::nullopt;
  return error_response_at(
      request.path,
      {403,
       fmt::format("The request comes from a page of {}, and this server asks nobody for a key: start it with "
                   "--allowed-origins and that origin, or with --api-key.",
                   in_quotes(origin, 80)),
       "", "", 0});
}

std::optional<HttpResponse> screen_content_type(const HttpRequest& request, bool takes_form) {
  const std::string_view given = request.header("Content-Type");
  if (given.empty() && !has_body(request)) return std::nullopt;
  const std::string media = media_type(given);
  if (takes_form ? media == "multipart/form-data" : media == "application/json" || media.ends_with("+json")) {
    return std::nullopt;
  }
  const std::string found = given.empty() ? "has no Content-Type" : "says Content-Type: " + in_quotes(given, 80);
  const std::string_view wanted = takes_form
                                      ? "be a form: send it as multipart/form-data (curl -F purpose=batch -F "
                                        "file=@FILE)"
                                      : "be JSON and say so: add the header 'Content-Type: application/json' (curl -H "
                                        "'Content-Type: application/json')";
  return error_response_at(request.path,
                           {415, fmt::format("The request {}, and its body must {}.", found, wanted), "", "", 0});
}

}  // namespace quire::server
