// Which requests are no web page's of a stranger. A page can have a browser that reaches this server ask it: by a name
// that is resolved to a loopback address (DNS rebinding), by posts across sites, by forms.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/cors.h"
#include "server/http.h"

namespace quire::server {

struct SiteOptions {
  // Names of this server, without a port; "*": any. Beside those of loopback; empty: any, but on a loopback listener.
  std::vector<std::string> allowed_hosts;
  std::string listens_at;  // a host; empty: a Unix socket
};

// Errors: invalid_argument (a name that is none, or has a port).
Status check_allowed_hosts(const std::vector<std::string>& hosts);

class Sites {
 public:
  // REQUIRES: check_allowed_hosts() is ok.
  explicit Sites(SiteOptions options);

  // The refusal of a request that came under another's name; nullopt: it did not.
  std::optional<HttpResponse> screen_host(const HttpRequest& request) const;

 private:
  const SiteOptions options_;
  bool every_host_;
};

// The refusal of a page's request where everybody may ask: of a page that is neither this server's nor allowed.
std::optional<HttpResponse> screen_origin(const HttpRequest& request, const Cors& cors);

// The refusal of a body that does not say that it is JSON, or a form where `takes_form`: what a page can send across
// sites without asking first says something else. nullopt: it does, or there is none.
std::optional<HttpResponse> screen_content_type(const HttpRequest& request, bool takes_form);

}  // namespace quire::server
