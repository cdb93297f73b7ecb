// What an operator may ask of a running engine: by the operators' own listener (server/admin_server.h), and among the
// clients' routes with --enable-admin-endpoints.
//
//   POST /reset_prefix_cache                  forgets all cached prefixes
//   GET  /admin/flight_recorder?steps=N       the last N steps (all that are kept, without N)
//   GET  /admin/requests/{id}                 one request's life; its id as in the answer, or the X-Request-Id
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/http.h"

namespace quire::server {

struct AdminRoute {
  std::string method;
  std::string path;  // as Route's
  std::function<HttpResponse(const HttpRequest&)> answer;
};

// Those above. The engine outlives them.
std::vector<AdminRoute> admin_routes(engine::Engine& engine);

// {"level": "info"}, of this process's log; to be changed by the operators' own listener alone.
HttpResponse show_log_level();
HttpResponse change_log_level(const std::string& body);

// vLLM's gauge whose labels say how the cache is set up.
void publish_cache_config(engine::Engine& engine);

}  // namespace quire::server
