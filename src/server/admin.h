// What an operator may ask of the models: by the operators' own listener (server/admin_server.h), and among the
// clients' routes with --enable-admin-endpoints.
//
//   POST /reset_prefix_cache                  forgets all cached prefixes
//   GET  /admin/flight_recorder?steps=N       the last N steps (all that are kept, without N)
//   GET  /admin/requests/{id}                 one request's life; its id as in the answer, or the X-Request-Id
//   POST /v1/load_lora_adapter                {"lora_name": NAME, "lora_path": a folder or file in --lora-dir,
//                                             "load_inplace": in the place of one of that name}
//   POST /v1/unload_lora_adapter              {"lora_name": NAME}
//   POST /sleep?level=L  /wake_up             all models leave memory, and the first comes back
//   GET  /is_sleeping                         {"is_sleeping": whether none is loaded}
//   POST /models/load  /models/unload         {"model": NAME}: as if a request had come for it; as soon as what it
//                                             answers is done
//
// Each is for all models that are loaded, but that the flight recorder is one's: with ?model=NAME, else the first's.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "server/http.h"

namespace quire::engine {
class Engine;
}

namespace quire::server {

class Models;

struct AdminRoute {
  std::string method;
  std::string path;  // as Route's
  std::function<HttpResponse(const HttpRequest&)> answer;
};

// Those above. The models outlive them.
std::vector<AdminRoute> admin_routes(Models& models);

// {"level": "info"}, of this process's log; to be changed by the operators' own listener alone.
HttpResponse show_log_level();
HttpResponse change_log_level(const std::string& body);

// vLLM's gauge whose labels say how the cache is set up.
void publish_cache_config(engine::Engine& engine);

}  // namespace quire::server
