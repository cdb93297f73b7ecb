#include "server/admin.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <boost/json.hpp>

#include "base/log.h"
#include "base/parse_json.h"
#include "engine/flight_recorder.h"
#include "server/api_error.h"
#include "server/json_fields.h"
#include "server/models.h"
#include "server/url.h"
#include "types/memory_plan.h"

namespace quire::server {
namespace json = boost::json;

namespace {

HttpResponse as_response(const json::object& body) {
  return {200, "application/json", {}, json::serialize(body)};
}

std::optional<HttpResponse> recorder_off(const engine::Engine& engine) {
  if (engine.flight_recorder().on()) return std::nullopt;
  return error_response({404, "The flight recorder is off (--flight-recorder-steps 0).", "", "", 0});
}

HttpResponse reset_prefix_cache(Models& models) {
  for (const auto& lease : models.all_loaded()) lease->generator().engine().reset_prefix_cache();
  return as_response({{"success", true}});
}

HttpResponse flight_recorder(Models& models, std::string_view query) {
  const auto lease = models.loaded(query_value(query, "model").value_or(""));
  if (!lease.ok()) return error_response(to_api_error(lease.status()));
  const engine::Engine& engine = (*lease)->generator().engine();
  if (auto off = recorder_off(engine)) return std::move(*off);
  int64_t count = -1;
  if (const auto steps = query_value(query, "steps")) {
    const auto [end, error] = std::from_chars(steps->data(), steps->data() + steps->size(), count);
    if (error != std::errc() || end != steps->data() + steps->size() || count < 0) {
      return error_response({400,
                             fmt::format("steps must be a number of steps, 0 or more, got {}.", in_quotes(*steps, 40)),
                             "steps", "", 0});
    }
  }
  return as_response(engine.flight_recorder().steps(count));
}

HttpResponse request_life(Models& models, std::string_view id) {
  for (const auto& lease : models.all_loaded()) {
    const engine::Engine& engine = lease->generator().engine();
    if (auto off = recorder_off(engine)) return std::move(*off);
    for (const char* prefix : {"", "chatcmpl-", "cmpl-"}) {
      if (const auto life = engine.flight_recorder().request(prefix + std::string(id))) return as_response(*life);
    }
  }
  return error_response(
      {404, fmt::format("Nothing is known of a request {}: it never came, or is long over.", in_quotes(id)), "id",
       "request_not_found", 0});
}

// Loading goes on by itself; GET /v1/models tells how far it is.
HttpResponse change_model(Models& models, const HttpRequest& request, bool load) {
  const auto body = parse_json_object(request.body);
  if (!body.ok()) return error_response(to_api_error(body.status()));
  const json::value* name = body->if_contains("model");
  if (name == nullptr || !name->is_string() || body->size() != 1) {
    return error_response({400, R"(Send {"model": NAME}.)", "model", "", 0});
  }
  const std::string wanted(name->get_string());
  Status status;
  if (load) {
    // Kept by what is said now alone: an error of loading is in the log.
    const auto listed = models.list();
    const bool known = std::ranges::any_of(listed, [&](const auto& model) { return model.name == wanted; });
    status = known ? Status() : unknown_model(wanted);
    if (known) models.use(wanted, [](const Models::LeaseOr&) {});
  } else {
    status = models.unload(wanted);
  }
  return status.ok() ? as_response({{"success", true}}) : error_response(to_api_error(status));
}

}  // namespace

std::vector<AdminRoute> admin_routes(Models& models) {
  return {
      {"POST", "/reset_prefix_cache", [&models](const HttpRequest&) { return reset_prefix_cache(models); }},
      {"GET", "/admin/flight_recorder",
       [&models](const HttpRequest& request) { return flight_recorder(models, request.query); }},
      {"GET", "/admin/requests/{id...}",
       [&models](const HttpRequest& request) { return request_life(models, request.argument); }},
      {"POST", "/models/load", [&models](const HttpRequest& request) { return change_model(models, request, true); }},
      {"POST", "/models/unload",
       [&models](const HttpRequest& request) { return change_model(models, request, false); }}};
}

HttpResponse show_log_level() {
  return as_response({{"level", log_level()}});
}

HttpResponse change_log_level(const std::string& body) {
  boost::system::error_code error;
  const json::value asked = parse_json(body, error);
  const json::object* object = error ? nullptr : asked.if_object();
  const json::value* level = object != nullptr && object->size() == 1 ? object->if_contains("level") : nullptr;
  if (level == nullptr || !level->is_string() || !set_log_level(level->get_string())) {
    return error_response(
        {400, R"(Send {"level": L}, L being "debug", "info", "warning" or "error".)", "level", "", 0});
  }
  return show_log_level();
}

void publish_cache_config(engine::Engine& engine) {
  const EngineConfig& config = engine.config();
  const MemoryPlan& memory = engine.memory();
  engine.metrics()
      .gauge("vllm:cache_config_info", "How the KV cache is set up, as labels.",
             {{"model_name", config.served_model_name},
              {"block_size", std::to_string(memory.block_size)},
              {"cache_dtype", std::string(name(config.kv_cache_dtype))},
              {"enable_prefix_caching", config.enable_prefix_caching ? "True" : "False"},
              {"gpu_memory_utilization", fmt::format("{}", memory.memory_utilization)},
              {"kv_cache_memory_bytes", std::to_string(config.kv_cache_memory_bytes)},
              {"num_gpu_blocks", std::to_string(memory.num_blocks)},
              {"num_gpu_blocks_override",
               config.num_gpu_blocks_override > 0 ? std::to_string(config.num_gpu_blocks_override) : "None"},
              {"num_cpu_blocks", std::to_string(memory.num_swap_blocks)},
              {"swap_space", fmt::format("{}", config.swap_space)}})
      .set(1);
}

}  // namespace quire::server
