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
  const Status status = models.reset_prefix_caches();
  if (!status.ok()) return error_response(to_api_error(status));
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

// The models themselves, without their adapters and other names.
std::vector<Models::Listed> own_models(Models& models) {
  std::vector<Models::Listed> own = models.list();
  std::erase_if(own, [](const Models::Listed& model) { return !model.parent.empty(); });
  return own;
}

// vLLM's: all models leave memory when what they answer is done. Its levels differ in where the weights go; here they
// are read from their files again whichever it is.
HttpResponse sleep(Models& models, std::string_view query) {
  const std::string_view level = query_value(query, "level").value_or("1");
  if (level != "1" && level != "2") {
    return error_response({400, fmt::format("level must be 1 or 2, got {}.", in_quotes(level, 40)), "level", "", 0});
  }
  for (const Models::Listed& model : own_models(models)) {
    if (std::string_view(model.status) != "loaded") continue;
    const Status status = models.unload(model.name);
    if (!status.ok()) return error_response(to_api_error(status));
  }
  return {200, "text/plain; charset=utf-8", {}, ""};
}

// What was awake is loaded again, beside this; requests for it wait.
HttpResponse wake_up(Models& models, std::string_view query) {
  const std::string_view tags = query_value(query, "tags").value_or("weights");
  if (tags != "weights" && tags != "kv_cache") {
    return error_response(
        {400, fmt::format("tags must be weights or kv_cache, got {}.", in_quotes(tags, 40)), "tags", "", 0});
  }
  models.use("", [](const Models::LeaseOr&) {});
  return {200, "text/plain; charset=utf-8", {}, ""};
}

HttpResponse is_sleeping(Models& models) {
  const std::vector<Models::Listed> own = own_models(models);
  const bool asleep = std::ranges::all_of(
      own, [](const Models::Listed& model) { return std::string_view(model.status) == "unloaded"; });
  return as_response({{"is_sleeping", asleep}});
}

// vLLM's two: its fields, its words, its statuses. base_model_name: of several models; else the first's.
HttpResponse change_adapter(Models& models, const HttpRequest& request, bool load) {
  const auto body = parse_json_object(request.body);
  if (!body.ok()) return error_response(to_api_error(body.status()));
  std::string name, path, base;
  bool replace = false;
  for (const auto& [key, value] : *body) {
    std::string* text = key == "lora_name"                 ? &name
                        : key == "lora_path" && load       ? &path
                        : key == "base_model_name" && load ? &base
                                                           : nullptr;
    if (text != nullptr && value.is_string()) {
      *text = value.get_string();
    } else if (key == "load_inplace" && load && value.is_bool()) {
      replace = value.get_bool();
    } else if (key == "lora_int_id" && (value.is_null() || value.is_int64())) {
      // Numbers are the server's own to give.
    } else if (!(key == "base_model_name" && value.is_null())) {
      return error_response({400, fmt::format("{} is not expected here, or not of this kind.", in_quotes(key, 40)),
                             std::string(key), "", 0});
    }
  }
  if (name.empty() || (load && path.empty())) {
    return error_response(
        {400, load ? "Both 'lora_name' and 'lora_path' must be provided." : "'lora_name' must be provided.",
         name.empty() ? "lora_name" : "lora_path", "", 0});
  }
  Status status;
  if (load) {
    const auto lease = models.loaded(base);
    if (!lease.ok()) return error_response(to_api_error(lease.status()));
    const auto listed = models.list();
    const bool is_model =
        std::ranges::any_of(listed, [&](const auto& model) { return model.name == name && model.parent.empty(); });
    status = is_model ? invalid_argument("a model is called `{}`", name).with_param("lora_name")
                      : (*lease)->generator().engine().load_adapter_from_folder(name, path, replace);
    // What the files lack is what the operator has sent us to.
    if (status.code() == StatusCode::kDataLoss) {
      status = Status(StatusCode::kInvalidArgument, status.message()).with_param("lora_path");
    }
  } else {
    status =
        models.forget_adapter(name) ? Status() : not_found("there is no adapter `{}`", name).with_param("lora_name");
    for (const auto& lease : models.all_loaded()) {
      Status here = lease->generator().engine().unload_adapter(name);
      if (status.ok() || here.code() == StatusCode::kNotFound || here.code() == StatusCode::kUnimplemented) continue;
      status = std::move(here);
    }
  }
  if (!status.ok()) return error_response(to_api_error(status));
  return {200,
          "text/plain; charset=utf-8",
          {},
          fmt::format("Success: LoRA adapter '{}' {} successfully.", name, load ? "added" : "removed")};
}

}  // namespace

std::vector<AdminRoute> admin_routes(Models& models) {
  return {
      {"POST", "/reset_prefix_cache", [&models](const HttpRequest&) { return reset_prefix_cache(models); }},
      {"POST", "/sleep", [&models](const HttpRequest& request) { return sleep(models, request.query); }},
      {"POST", "/wake_up", [&models](const HttpRequest& request) { return wake_up(models, request.query); }},
      {"GET", "/is_sleeping", [&models](const HttpRequest&) { return is_sleeping(models); }},
      {"GET", "/admin/flight_recorder",
       [&models](const HttpRequest& request) { return flight_recorder(models, request.query); }},
      {"GET", "/admin/requests/{id...}",
       [&models](const HttpRequest& request) { return request_life(models, request.argument); }},
      {"POST", "/v1/load_lora_adapter",
       [&models](const HttpRequest& request) { return change_adapter(models, request, true); }},
      {"POST", "/v1/unload_lora_adapter",
       [&models](const HttpRequest& request) { return change_adapter(models, request, false); }},
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
