#include "server/cors.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "server/api_error.h"

namespace quire::server {

namespace {

bool has_star(const std::vector<std::string>& values) {
  return std::find(values.begin(), values.end(), "*") != values.end();
}

std::string joined(const std::vector<std::string>& values) {
  return fmt::format("{}", fmt::join(values, ", "));
}

// A token of HTTP: what methods and names of fields are made of.
bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  });
}

// "scheme://host[:port]" as browsers send it: without a path.
bool is_origin(std::string_view text) {
  const size_t scheme = text.find("://");
  if (scheme == std::string_view::npos || scheme == 0 || !is_token(text.substr(0, scheme))) return false;
  const std::string_view host = text.substr(scheme + 3);
  return !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
    return c > ' ' && c < '\x7f' && c != '/' && c != '"' && c != ',' && c != '*';
  });
}

Status check_tokens(const char* flag, const std::vector<std::string>& values) {
  for (const std::string& value : values) {
    if (!is_token(value)) return invalid_argument("{}: {} is no name of HTTP's.", flag, in_quotes(value));
  }
  return {};
}

}  // namespace

Status check(const CorsOptions& options) {
  for (const std::string& origin : options.origins) {
    if (origin == "*" || is_origin(origin)) continue;
    return invalid_argument("--allowed-origins: {} is no origin; one looks like https://chat.example, without a path.",
                            in_quotes(origin));
  }
  if (options.credentials && (options.origins.empty() || has_star(options.origins))) {
    return invalid_argument("--allow-credentials needs --allowed-origins with names: not for everybody's pages.");
  }
  QUIRE_RETURN_IF_ERROR(check_tokens("--allowed-methods", options.methods));
  return check_tokens("--allowed-headers", options.headers);
}

Cors::Cors(CorsOptions options)
    : options_(std::move(options)),
      every_origin_(has_star(options_.origins)),
      every_header_(has_star(options_.headers)),
      methods_(has_star(options_.methods) ? "GET, HEAD, POST, DELETE, OPTIONS" : joined(options_.methods)),
      headers_(joined(options_.headers)) {}

bool Cors::allows(std::string_view origin) const {
  return every_origin_ || std::find(options_.origins.begin(), options_.origins.end(), origin) != options_.origins.end();
}

void Cors::add_origin(std::string_view origin, HeaderFields& fields) const {
  fields.emplace_back("Access-Control-Allow-Origin", every_origin_ ? "*" : std::string(origin));
  if (options_.credentials) fields.emplace_back("Access-Control-Allow-Credentials", "true");
}

std::optional<HttpResponse> Cors::preflight(const HttpRequest& request) const {
  const std::string_view origin = request.header("Origin");
  const std::string_view method = request.header("Access-Control-Request-Method");
  if (options_.origins.empty() || request.method != "OPTIONS" || origin.empty() || method.empty()) return std::nullopt;
  if (!allows(origin)) return error_response({400, "Pages of this origin may not use this server.", "", "", 0});
  HttpResponse response;
  response.status = 204;
  response.headers.emplace_back("Access-Control-Allow-Methods", methods_);
  const std::string_view asked = request.header("Access-Control-Request-Headers");
  if (!every_header_ && !headers_.empty()) {
    response.headers.emplace_back("Access-Control-Allow-Headers", headers_);
  } else if (every_header_ && !asked.empty()) {  // "*" itself would not cover Authorization
    response.headers.emplace_back("Access-Control-Allow-Headers", asked);
  }
  response.headers.emplace_back("Access-Control-Max-Age", "600");
  return response;
}

void Cors::add_headers(const HttpRequest& request, HeaderFields& fields) const {
  if (options_.origins.empty()) return;
  if (!every_origin_) fields.emplace_back("Vary", "Origin");  // also where there is none: caches must know
  const std::string_view origin = request.header("Origin");
  if (origin.empty() || !allows(origin)) return;
  add_origin(origin, fields);
  fields.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
}

}  // namespace quire::server
