// What the server answers where, and who may ask.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_keys.h"
#include "server/http.h"

namespace quire::server {

struct Route {
  std::string method;  // GET answers HEAD too
  // Exact, but for a segment like "{id}", which takes any one that is not empty, and one like "{name...}" at the end,
  // which takes whatever is there, slashes too.
  std::string path;
  bool open = false;  // without an API key
  std::function<void(const std::shared_ptr<Exchange>&)> handle;
};

// What stands in `path` where the pattern has braces, percent-decoded; nullopt when they do not match.
std::optional<std::string> matched_argument(std::string_view pattern, std::string_view path);

// Finds routes by exact path: nothing is decoded or normalised, so that no spelling of a path gets around the key.
class Routes {
 public:
  Routes(std::vector<Route> routes, const std::vector<ApiKey>& api_keys);

  // Names the route in request.handler and the key in request.tenant, or says why there is none for this request: 401,
  // 404, 405, or 204 to OPTIONS.
  std::optional<HttpResponse> screen(HttpRequest& request) const;
  const std::vector<Route>& all() const { return routes_; }
  // REQUIRES: screen() let the request through.
  void dispatch(const std::shared_ptr<Exchange>& exchange) const;

 private:
  const Route* find(const HttpRequest& request) const;
  // The number of the key that the request bears: as OpenAI's clients send it, or as Anthropic's.
  std::optional<int32_t> key_of(const HttpRequest& request) const;

  std::vector<Route> routes_;
  std::vector<std::string> key_digests_;
};

}  // namespace quire::server
