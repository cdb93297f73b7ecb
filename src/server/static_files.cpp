#include "server/static_files.h"

#include <string>

namespace quire::server {

namespace {

// Scripts, styles and connections of this server only; no inline code, no plug-ins, no forms that go anywhere, no
// frames, and no way from a string to HTML.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

std::string path_of(std::string_view name) {
  if (name == "index.html") return "/";
  if (name == "dashboard.html") return "/dashboard";
  return "/page/" + std::string(name);
}

// Whether a list of entity tags names this one. Weak comparison: W/"x" is "x" (RFC 9110, section 13.1.2).
bool names(std::string_view list, std::string_view etag) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    std::string_view tag = list.substr(0, comma);
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
    while (tag.starts_with(' ') || tag.starts_with('\t')) tag.remove_prefix(1);
    while (tag.ends_with(' ') || tag.ends_with('\t')) tag.remove_suffix(1);
    if (tag.starts_with("W/")) tag.remove_prefix(2);
    if (tag == etag || tag == "*") return true;
  }
  return false;
}

}  // namespace

HttpResponse static_response(const StaticFile& file, std::string_view if_none_match) {
  HttpResponse response;
  response.content_type = file.content_type;
  response.headers = {{"ETag", std::string(file.etag)},
                      {"Cache-Control", "no-cache"},
                      {"Content-Security-Policy", kPolicy},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cross-Origin-Opener-Policy", "same-origin"},
                      {"Cross-Origin-Resource-Policy", "same-origin"}};
  if (names(if_none_match, file.etag)) {
    response.status = 304;
  } else {
    response.body = file.bytes;
  }
  return response;
}

std::vector<Route> page_routes() {
  std::vector<Route> routes;
  for (const StaticFile& file : static_files()) {
    routes.push_back({"GET", path_of(file.name), /*open=*/true, [&file](const std::shared_ptr<Exchange>& exchange) {
                        exchange->respond(static_response(file, exchange->request().header("If-None-Match")));
                      }});
  }
  return routes;
}

}  // namespace quire::server
