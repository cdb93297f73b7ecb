// Which pages of other origins a browser lets talk to the server (CORS, the Fetch standard). Off unless origins are
// named.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/http.h"

namespace quire::server {

struct CorsOptions {
  std::vector<std::string> origins;       // "https://chat.example", or "*"; empty: off
  std::vector<std::string> methods{"*"};  // "*": those that there are
  std::vector<std::string> headers{"*"};  // "*": whatever a page asks for
  bool credentials = false;               // cookies and the like too
};

// Errors: invalid_argument (an origin that is none, credentials for every origin, a bad method or header name).
Status check(const CorsOptions& options);

class Cors {
 public:
  // REQUIRES: check(options) is ok.
  explicit Cors(CorsOptions options);

  // The answer to a browser's question before the request itself (an OPTIONS with its marks), which bears no key;
  // nullopt for everything else and where CORS is off.
  std::optional<HttpResponse> preflight(const HttpRequest& request) const;
  // What answers to this request have so that the page that sent it may read them.
  void add_headers(const HttpRequest& request, HeaderFields& fields) const;
  bool allows(std::string_view origin) const;

 private:
  void add_origin(std::string_view origin, HeaderFields& fields) const;

  const CorsOptions options_;
  const bool every_origin_;
  const bool every_header_;
  const std::string methods_;
  const std::string headers_;
};

}  // namespace quire::server
