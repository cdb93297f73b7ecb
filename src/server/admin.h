// What an operator may ask of a running engine. The routes exist only with --enable-admin-endpoints.
//
//   POST /reset_prefix_cache                  forgets all cached prefixes
//   GET  /admin/flight_recorder?steps=N       the last N steps (all that are kept, without N)
//   GET  /admin/requests/{id}                 one request's life; its id as in the answer, or the X-Request-Id
#pragma once

#include <string_view>

#include "engine/engine.h"
#include "server/http.h"

namespace quire::server {

HttpResponse reset_prefix_cache(engine::Engine& engine);
HttpResponse flight_recorder(const engine::Engine& engine, std::string_view query);
HttpResponse request_life(const engine::Engine& engine, std::string_view id);

// vLLM's gauge whose labels say how the cache is set up.
void publish_cache_config(engine::Engine& engine);

}  // namespace quire::server
