#include "server/routes.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "base/check.h"
#include "server/api_error.h"

namespace quire::server {

namespace {

// Keys are compared by digest: equal lengths, and time that tells nothing.
std::string sha256(std::string_view text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  QUIRE_CHECK(EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr) == 1);
  return {reinterpret_cast<const char*>(digest), size};
}

bool matches(const Route& route, std::string_view path) {
  if (route.path == "/" || !route.path.ends_with('/')) return path == route.path;
  return path.size() > route.path.size() && path.starts_with(route.path);
}

bool answers(const Route& route, std::string_view method) {
  return route.method == method || (route.method == "GET" && method == "HEAD");
}

}  // namespace

Routes::Routes(std::vector<Route> routes, const std::vector<std::string>& api_keys) : routes_(std::move(routes)) {
  for (const std::string& key : api_keys) key_digests_.push_back(sha256(key));
}

std::optional<int32_t> Routes::key_of(const HttpRequest& request) const {
  constexpr std::string_view kScheme = "bearer ";
  const std::string_view header = request.header("Authorization");
  if (header.size() <= kScheme.size()) return std::nullopt;
  const bool bearer = std::equal(kScheme.begin(), kScheme.end(), header.begin(), [](char expected, char found) {
    return expected == std::tolower(static_cast<unsigned char>(found));
  });
  if (!bearer) return std::nullopt;
  const std::string digest = sha256(header.substr(kScheme.size()));
  std::optional<int32_t> found;
  for (size_t i = 0; i < key_digests_.size(); ++i) {
    if (CRYPTO_memcmp(key_digests_[i].data(), digest.data(), digest.size()) == 0) found = static_cast<int32_t>(i);
  }
  return found;
}

const Route* Routes::find(const HttpRequest& request) const {
  const auto route = std::find_if(routes_.begin(), routes_.end(), [&](const Route& r) {
    return matches(r, request.path) && answers(r, request.method);
  });
  return route == routes_.end() ? nullptr : &*route;
}

std::optional<HttpResponse> Routes::screen(HttpRequest& request) const {
  std::vector<const Route*> there;  // whatever the method
  std::string allowed = "OPTIONS";
  for (const Route& route : routes_) {
    if (!matches(route, request.path)) continue;
    there.push_back(&route);
    allowed += route.method == "GET" ? ", GET, HEAD" : ", " + route.method;
  }
  if (!there.empty()) request.handler = there.front()->path;
  const Route* route = find(request);
  const bool open = (route != nullptr && route->open) || (!there.empty() && request.method == "OPTIONS");
  const std::optional<int32_t> key = key_digests_.empty() ? 0 : key_of(request);
  request.tenant = key.value_or(0);
  if (!open && !key) {
    return error_response(
        {401, "The API key is missing or wrong: send it as 'Authorization: Bearer KEY'.", "", "invalid_api_key", 0});
  }
  if (there.empty()) {
    return error_response({404, fmt::format("There is nothing at {}.", quoted(request.path)), "", "", 0});
  }
  if (route != nullptr) return std::nullopt;
  HttpResponse response;
  if (request.method == "OPTIONS") {
    response.status = 204;
  } else {
    response = error_response(
        {405,
         fmt::format("{} does not answer {}; it answers {}.", there.front()->path, quoted(request.method, 20), allowed),
         "", "", 0});
  }
  response.headers.emplace_back("Allow", allowed);
  return response;
}

void Routes::dispatch(const std::shared_ptr<Exchange>& exchange) const {
  const Route* route = find(exchange->request());
  QUIRE_CHECK(route != nullptr);
  route->handle(exchange);
}

}  // namespace quire::server
