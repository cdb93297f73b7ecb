#include "server/admin_server.h"

#include <utility>

#include <boost/json.hpp>

#include "base/log.h"
#include "server/admin.h"
#include "server/api_error.h"

namespace quire::server {

namespace {

// Everything is answered at once on its only thread: an operator who waits delays operators.
std::vector<Route> make_routes(std::vector<Route> shared, Models& models) {
  std::vector<Route> routes = std::move(shared);
  const auto add = [&](AdminRoute route) {
    routes.push_back({std::move(route.method), std::move(route.path), false,
                      [answer = std::move(route.answer)](const std::shared_ptr<Exchange>& exchange) {
                        exchange->respond(answer(exchange->request()));
                      }});
  };
  for (AdminRoute& route : admin_routes(models)) add(std::move(route));
  add({"GET", "/admin/log_level", [](const HttpRequest&) { return show_log_level(); }});
  add({"PUT", "/admin/log_level", [](const HttpRequest& request) { return change_log_level(request.body); }});
  return routes;
}

HttpOptions http_options(const AdminConfig& config) {
  HttpOptions options;
  options.host = config.host;
  options.port = config.port.value_or(0);
  options.uds = config.uds;
  options.uds_mode = config.uds_mode;
  options.io_threads = 1;
  options.max_connections = 64;
  options.max_body_bytes = 64 << 10;
  options.max_buffered_bytes = 4 << 20;
  return options;
}

}  // namespace

Result<std::unique_ptr<AdminServer>> AdminServer::start(const AdminConfig& config,
                                                        std::vector<std::string> allowed_hosts,
                                                        std::vector<Route> shared, Models& models) {
  if (config.port && !config.uds.empty()) {
    return invalid_argument("Operators have a port or a Unix socket, not both: --admin-port or --admin-uds.");
  }
  if (config.uds.empty() && config.api_keys.empty() && !is_loopback(config.host)) {
    return invalid_argument(
        "--admin-host {} may be reached from other machines: give --admin-api-key, or a loopback address.",
        config.host);
  }
  QUIRE_ASSIGN_OR_RETURN(const std::vector<ApiKey> keys, all_api_keys(config.api_keys, {}, {}));
  SiteOptions sites{.allowed_hosts = std::move(allowed_hosts), .listens_at = config.uds.empty() ? config.host : ""};
  auto server =
      std::unique_ptr<AdminServer>(new AdminServer(std::move(sites), make_routes(std::move(shared), models), keys));
  auto http = HttpServer::start(http_options(config), *server);
  if (!http.ok()) return Status(http.status()).with_prefix("The listener for operators: ");
  server->http_ = std::move(*http);
  return server;
}

AdminServer::~AdminServer() {
  if (http_ != nullptr) http_->stop();
}

std::optional<HttpResponse> AdminServer::screen(HttpRequest& head) {
  if (auto refused = sites_.screen_host(head)) return refused;
  // A page in an operator's browser reaches loopback too, and says whose page it is.
  if (!head.header("Origin").empty() || head.header("Sec-Fetch-Site") == "cross-site") {
    return error_response({403, "This listener answers no web pages.", "", "", 0});
  }
  if (auto refused = routes_.screen(head)) return refused;
  if (head.method != "POST" && head.method != "PUT") return std::nullopt;
  return screen_content_type(head, /*takes_form=*/false);
}

void AdminServer::answered(const HttpRequest& request, int status, double) {
  log_request(LogLevel::kInfo, request.id, "operator {}: {} {} {}", request.peer, request.method,
              in_quotes(request.path, 80), status);
}

}  // namespace quire::server
