// A listener for operators alone, apart from the one that clients use: closed unless asked for.
//
//   all of server/admin.h, and
//   GET, PUT /admin/log_level        {"level": "info"}: debug, info, warning or error
//   GET /health  /load  /metrics     as clients have them
//
// It asks for keys of its own; clients' keys are nothing here. Requests of web pages are refused.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/http_server.h"
#include "server/routes.h"
#include "server/sites.h"

namespace quire::server {

struct AdminConfig {
  std::string host = "127.0.0.1";
  std::optional<uint16_t> port;  // 0: any free one
  std::string uds;               // or a Unix socket
  uint32_t uds_mode = 0600;
  std::vector<std::string> api_keys;  // none: everybody who can connect

  bool on() const { return port.has_value() || !uds.empty(); }
};

class Models;

class AdminServer final : public HttpHandler {
 public:
  // `shared` are routes that it has in common with the clients' listener; `allowed_hosts` as SiteOptions has them. The
  // models, and what they refer to, outlive it. Errors: invalid_argument (a port and a socket, or another machine's
  // address without keys), and HttpServer::start()'s.
  static Result<std::unique_ptr<AdminServer>> start(const AdminConfig& config, std::vector<std::string> allowed_hosts,
                                                    std::vector<Route> shared, Models& models);
  ~AdminServer() override;

  uint16_t port() const { return http_->port(); }
  void stop() { http_->stop(); }

  std::optional<HttpResponse> screen(HttpRequest& head) override;
  void handle(std::shared_ptr<Exchange> exchange) override { routes_.dispatch(exchange); }
  void answered(const HttpRequest& request, int status, double seconds) override;

 private:
  AdminServer(SiteOptions sites, std::vector<Route> routes, const std::vector<ApiKey>& keys)
      : sites_(std::move(sites)), routes_(std::move(routes), keys) {}

  const Sites sites_;
  const Routes routes_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace quire::server
