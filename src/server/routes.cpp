#include "server/routes.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <openssl/crypto.h>

#include "base/check.h"
#include "server/api_error.h"
#include "server/digest.h"
#include "server/url.h"

namespace quire::server {

namespace {

bool answers(const Route& route, std::string_view method) {
  return route.method == method || (route.method == "GET" && method == "HEAD");
}

// The key of a request, or nothing.
std::string_view bearer_key(const HttpRequest& request) {
  constexpr std::string_view kScheme = "bearer ";
  const std::string_view header = request.header("Authorization");
  if (header.empty()) return request.header("x-api-key");
  if (header.size() <= kScheme.size()) return {};
  const bool bearer = std::equal(kScheme.begin(), kScheme.end(), header.begin(), [](char expected, char found) {
    return expected == std::tolower(static_cast<unsigned char>(found));
  });
  return bearer ? header.substr(kScheme.size()) : std::string_view();
}

}  // namespace

Routes::Routes(std::vector<Route> routes, const std::vector<ApiKey>& api_keys) : routes_(std::move(routes)) {
  for (const ApiKey& key : api_keys) key_digests_.push_back(sha256(key.key));
}

std::optional<std::string> matched_argument(std::string_view pattern, std::string_view path) {
  std::string argument;
  while (true) {
    const std::string_view expected = pattern.substr(0, pattern.find('/', 1));
    std::string_view found = path.substr(0, path.find('/', 1));
    if (expected.starts_with("/{")) {
      if (expected.ends_with("...}")) found = path;
      if (found.size() < 2 || found[0] != '/') return std::nullopt;
      argument = percent_decoded(found.substr(1));
    } else if (expected != found) {
      return std::nullopt;
    }
    pattern.remove_prefix(expected.size());
    path.remove_prefix(found.size());
    if (pattern.empty() || path.empty()) break;
  }
  if (!pattern.empty() || !path.empty()) return std::nullopt;
  return argument;
}

std::optional<int32_t> Routes::key_of(const HttpRequest& request) const {
  const std::string_view key = bearer_key(request);
  if (key.empty()) return std::nullopt;
  // By digest: equal lengths, and time that tells nothing.
  const std::string digest = sha256(key);
  std::optional<int32_t> found;
  for (size_t i = 0; i < key_digests_.size(); ++i) {
    if (CRYPTO_memcmp(key_digests_[i].data(), digest.data(), digest.size()) == 0) found = static_cast<int32_t>(i);
  }
  return found;
}

const Route* Routes::find(const HttpRequest& request) const {
  const auto route = std::find_if(routes_.begin(), routes_.end(), [&](const Route& r) {
    return matched_argument(r.path, request.path) && answers(r, request.method);
  });
  return route == routes_.end() ? nullptr : &*route;
}

std::optional<HttpResponse> Routes::screen(HttpRequest& request) const {
  std::vector<const Route*> there;  // whatever the method
  std::string allowed = "OPTIONS";
  for (const Route& route : routes_) {
    if (!matched_argument(route.path, request.path)) continue;
    there.push_back(&route);
    allowed += route.method == "GET" ? ", GET, HEAD" : ", " + route.method;
  }
  if (!there.empty()) request.handler = there.front()->path;
  const Route* route = find(request);
  const bool open = (route != nullptr && route->open) || (!there.empty() && request.method == "OPTIONS");
  const std::optional<int32_t> key = key_digests_.empty() ? 0 : key_of(request);
  request.tenant = key.value_or(-1);
  if (!open && !key) {
    return error_response_at(
        request.path,
        {401, "The API key is missing or wrong: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'.", "",
         "invalid_api_key", 0});
  }
  if (there.empty()) {
    return error_response_at(request.path,
                             {404, fmt::format("There is nothing at {}.", in_quotes(request.path)), "", "", 0});
  }
  if (route != nullptr) {
    request.argument = *matched_argument(route->path, request.path);
    return std::nullopt;
  }
  HttpResponse response;
  if (request.method == "OPTIONS") {
    response.status = 204;
  } else {
    response =
        error_response_at(request.path, {405,
                                         fmt::format("{} does not answer {}; it answers {}.", there.front()->path,
                                                     in_quotes(request.method, 20), allowed),
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
