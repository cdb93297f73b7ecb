#include "server/server.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "base/log.h"
#include "server/admin.h"
#include "server/api_error.h"
#include "server/batch_api.h"
#include "server/batch_endpoints.h"
#include "server/http_server.h"
#include "server/load.h"
#include "server/local_exchange.h"
#include "server/messages_api.h"
#include "server/models.h"
#include "server/openai_api.h"
#include "server/openapi.h"
#include "server/pooling_api.h"
#include "server/request_span.h"
#include "server/responses_api.h"
#include "server/routes.h"
#include "server/sites.h"
#include "server/span_exporter.h"
#include "server/static_files.h"
#include "server/tenants.h"
#include "server/trace_context.h"
#include "server/worker_pool.h"

namespace quire::server {
namespace json = boost::json;

namespace {

HttpOptions http_options(const ServerConfig& config) {
  HttpOptions options;
  options.host = config.host;
  options.port = config.port;
  options.uds = config.uds;
  options.uds_mode = config.uds_mode;
  options.tls = config.tls;
  options.io_threads = config.io_threads;
  options.max_connections = config.max_connections;
  options.max_header_bytes = config.max_header_bytes;
  options.max_headers = config.max_headers;
  options.max_body_bytes = config.max_body_bytes;
  options.max_buffered_bytes = config.max_buffered_bytes;
  options.max_unsent_bytes = config.max_unsent_bytes;
  options.tenant_weights = config.api_key_weights;
  options.min_read_rate = config.min_read_rate;
  options.header_timeout = config.header_timeout;
  options.body_timeout = config.body_timeout;
  options.idle_timeout = config.idle_timeout;
  options.write_timeout = config.write_timeout;
  options.linger_timeout = config.linger_timeout;
  return options;
}

constexpr const char* kFiles = "/v1/files";  // takes a form, not JSON
constexpr size_t kLongBody = 64 << 10;       // bytes, from which a request may take long to be prepared

HttpResponse json_response(const json::object& body) {
  return {200, "application/json", {}, json::serialize(body)};
}

// Requests to a model: what is traced.
bool asks_model(const std::string& method, const std::string& route) {
  static const std::set<std::string_view> kRoutes = {"/v1/chat/completions",
                                                     "/v1/completions",
                                                     "/v1/responses",
                                                     "/v1/messages",
                                                     "/v1/embeddings",
                                                     "/pooling",
                                                     "/classify",
                                                     "/v1/embed",
                                                     "/v2/embed",
                                                     "/v1/score",
                                                     "/score",
                                                     "/v1/rerank",
                                                     "/v2/rerank",
                                                     "/rerank"};
  return method == "POST" && kRoutes.contains(route);
}

// "/llm/v1/models" is "/v1/models" under "/llm", and so is the path without it.
void take_off_root_path(const std::string& root, std::string& path) {
  if (!root.empty() && path.starts_with(root + "/")) path.erase(0, root.size());
}

Status check_root_path(const std::string& root) {
  if (root.empty() || (root.size() > 1 && root.front() == '/' && root.back() != '/')) return {};
  return invalid_argument("root_path is {}; it begins with '/', goes on, and does not end with one: /llm", root);
}

// Counts a request as being served until the last holder of its exchange lets go of it.
std::shared_ptr<Exchange> counted(const std::shared_ptr<Exchange>& exchange, std::atomic<int64_t>& count) {
  ++count;
  return {exchange.get(), [held = exchange, &count](Exchange*) { --count; }};  // and only then the exchange may end
}

}  // namespace

class Server::Impl : public HttpHandler {
 public:
  Impl(ServerConfig config, const std::vector<ApiKey>& keys, Metrics& metrics)
      : config_(std::move(config)),
        metrics_(metrics),
        sites_({.allowed_hosts = config_.allowed_hosts, .listens_at = config_.uds.empty() ? config_.host : ""}),
        cors_(config_.cors),
        has_keys_(!keys.empty()),
        tenants_(keys, key_metrics_),
        keys_(keys),
        work_(std::make_shared<Load>(std::vector<double>(tenants_.size(), 1.0), config_.worker_threads,
                                     static_cast<int64_t>(config_.max_queued_work))),
        workers_(config_.worker_threads, config_.max_queued_work, tenants_.size()),
        seconds_(metrics.histogram("vllm:http_request_duration_seconds", "From a request's last byte to its answer's.",
                                   {0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600})) {}

  std::optional<HttpResponse> screen(HttpRequest& head) override {
    take_off_root_path(config_.root_path, head.path);
    if (const auto parent = head.header("traceparent"); parse_traceparent(parent)) {
      head.traceparent = parent;
      head.answer_headers.emplace_back("traceparent", parent);
    }
    if (auto refused = sites_.screen_host(head)) return refused;
    cors_.add_headers(head, head.answer_headers);
    if (auto asked = cors_.preflight(head)) return asked;
    if (!has_keys_) {
      if (auto refused = screen_origin(head, cors_)) return refused;
    }
    if (auto refused = routes_->screen(head)) return refused;
    if (spans_ != nullptr && asks_model(head.method, head.handler)) begin_span(spans_, head);
    if (head.method != "POST") return std::nullopt;
    if (draining_) return error_response_at(head.path, {503, "The server is shutting down.", "", "", 1});
    return screen_content_type(head, /*takes_form=*/head.path == kFiles);
  }

  void handle(std::shared_ptr<Exchange> exchange) override { routes_->dispatch(exchange); }

  void answered(const HttpRequest& request, int status, double seconds) override {
    constexpr std::string_view kMethods[] = {"GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH"};
    const bool known = std::find(std::begin(kMethods), std::end(kMethods), request.method) != std::end(kMethods);
    metrics_
        .counter("vllm:http_requests_total", "HTTP requests by route and status.",
                 {{"handler", request.handler.empty() ? "none" : request.handler},
                  {"method", known ? request.method : "other"},
                  {"status", std::to_string(status)}})
        .increment();
    seconds_.observe(seconds);
    if (request.span != nullptr) request.span->end(status);
    if (const std::string* name = key_name(request)) {
      key_metrics_
          .counter("quire:api_key_requests_total", "HTTP requests by API key and status.",
                   {{"api_key", *name}, {"status", std::to_string(status)}})
          .increment();
    }
    if (config_.access_log) log_access(request, status, seconds);
  }

  Status start(std::vector<ModelSource> models) {
    if (!config_.spans.endpoint.empty()) {
      QUIRE_ASSIGN_OR_RETURN(spans_, SpanExporter::start(config_.spans, config_.version, metrics_));
    }
    QUIRE_ASSIGN_OR_RETURN(models_, Models::start(config_, tenants_, metrics_, std::move(models)));
    api_.emplace(*models_);
    responses_.emplace(config_, *models_, background_);
    messages_.emplace(*models_);
    pooling_.emplace(*models_);
    routes_.emplace(make_routes(), keys_);
    openapi_ = json::serialize(openapi_document(routes_->all(), config_.version, config_.root_path));
    if (!config_.batch_folder.empty()) {
      QUIRE_ASSIGN_OR_RETURN(batches_, BatchApi::open(config_, *models_, background_,
                                                      BatchEndpoints(*api_, *responses_, *messages_, *pooling_)));
    }
    QUIRE_ASSIGN_OR_RETURN(http_, HttpServer::start(http_options(config_), *this));
    if (!config_.admin.on()) return {};
    auto shared = state_routes(/*operators=*/true);
    for (Route& route : shared) route.open = false;
    QUIRE_ASSIGN_OR_RETURN(admin_,
                           AdminServer::start(config_.admin, config_.allowed_hosts, std::move(shared), *models_));
    return {};
  }

  void stop(bool drain) {
    draining_ = true;
    if (http_ == nullptr) return;  // it never listened
    models_->close();
    if (drain) http_->drain(config_.drain_deadline, config_.drain_grace);
    if (batches_ != nullptr) batches_->stop();
    workers_.stop();
    background_.stop();
    http_->stop();
    if (spans_ != nullptr) spans_->stop();  // now that every answer is over
    if (admin_ != nullptr) admin_->stop();  // until here operators can look
  }

  const HttpServer& http() const { return *http_; }
  uint16_t admin_port() const { return admin_ != nullptr ? admin_->port() : 0; }

  const Routes& routes() const { return *routes_; }
  bool healthy() const { return models_->healthy(); }

 private:
  std::vector<Route> make_routes();
  std::vector<Route> state_routes(bool operators);
  const std::string* key_name(const HttpRequest& request);
  void log_access(const HttpRequest& request, int status, double seconds);
  using Answer = std::function<void(const std::shared_ptr<Exchange>&)>;
  Route working(std::string method, std::string path, Answer answer);
  void add_generating_routes(std::vector<Route>& routes);
  void add_batch_routes(std::vector<Route>& routes);
  void add_admin_routes(std::vector<Route>& routes);
  Route unparsed(std::string method, std::string path, std::function<HttpResponse(const HttpRequest&)> answer);
  void health(Exchange& exchange) const;
  void metrics(Exchange& exchange, bool operators) const;
  void model(Exchange& exchange) const;

  const ServerConfig config_;
  Metrics& metrics_;
  Metrics key_metrics_;  // what names API keys: for operators alone
  const Sites sites_;
  const Cors cors_;
  const bool has_keys_;
  Tenants tenants_;
  const std::vector<ApiKey> keys_;
  // From start() on.
  std::unique_ptr<Models> models_;       // what is below holds some of them loaded
  std::shared_ptr<SpanExporter> spans_;  // nullptr: no request is traced
  LocalExchanges background_{[this](HttpRequest& request) {
    if (spans_ != nullptr && asks_model(request.method, request.path)) begin_span(spans_, request);
  }};
  std::optional<const OpenAiApi> api_;
  std::optional<ResponsesApi> responses_;
  std::optional<const MessagesApi> messages_;
  std::optional<const PoolingApi> pooling_;
  std::optional<const Routes> routes_;
  std::string openapi_;
  std::atomic<bool> draining_{false};
  std::atomic<int64_t> num_served_{0};
  std::shared_ptr<Load> work_;  // requests that wait for a worker
  WorkerPool workers_;
  Histogram& seconds_;
  std::unique_ptr<BatchApi> batches_;  // nullptr without a folder
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<AdminServer> admin_;  // nullptr: none
};

// nullptr where it bears none, or came to no route.
const std::string* Server::Impl::key_name(const HttpRequest& request) {
  return has_keys_ && request.tenant >= 0 && !request.handler.empty() ? &tenants_[request.tenant].name() : nullptr;
}

void Server::Impl::log_access(const HttpRequest& request, int status, double seconds) {
  const auto& unlogged = config_.unlogged_paths;
  if (std::find(unlogged.begin(), unlogged.end(), request.path) != unlogged.end()) return;
  LogFields fields = {{"request_id", request.id},
                      {"client", request.peer},
                      {"method", std::string(shortened(request.method, 20))},
                      {"path", std::string(shortened(request.path, 200))},
                      {"status", std::to_string(status), true},
                      {"seconds", fmt::format("{:.6f}", seconds), true}};
  if (const std::string* name = key_name(request)) fields.push_back({"api_key", *name});
  if (!request.traceparent.empty()) fields.push_back({"traceparent", request.traceparent});
  log_with(LogLevel::kInfo, fields, "access");
}

// A route whose answer is prepared by a worker.
Route Server::Impl::working(std::string method, std::string path, Answer answer) {
  const auto prepare = [answer = std::move(answer)](const std::shared_ptr<Exchange>& exchange) {
    guarded(*exchange, [&] { answer(exchange); });
  };
  return {std::move(method), std::move(path), false, [this, prepare](const std::shared_ptr<Exchange>& arrived) {
            const std::shared_ptr<Exchange> exchange = counted(arrived, num_served_);
            std::shared_ptr<LoadTicket> ticket = work_->enter(exchange->request().tenant, 1);
            const auto length =
                exchange->request().body.size() >= kLongBody ? WorkerPool::Length::kLong : WorkerPool::Length::kShort;
            if (ticket != nullptr &&
                workers_.post(exchange->request().tenant, length, [prepare, exchange, ticket] { prepare(exchange); }))
              return;
            answer_error(*exchange,
                         resource_exhausted("The server has more requests than it can prepare; try again later."),
                         models_->retry_after());
          }};
}

// As `working`, for what needs no parsing.
Route Server::Impl::unparsed(std::string method, std::string path,
                             std::function<HttpResponse(const HttpRequest&)> answer) {
  return {std::move(method), std::move(path), false,
          [this, answer = std::move(answer)](const std::shared_ptr<Exchange>& exchange) {
            if (workers_.post(exchange->request().tenant, WorkerPool::Length::kShort,
                              [answer, exchange] { exchange->respond(answer(exchange->request())); }))
              return;
            exchange->respond(error_response(to_api_error(
                resource_exhausted("The server has more requests than it can prepare; try again later."))));
          }};
}

void Server::Impl::add_generating_routes(std::vector<Route>& routes) {
  const auto to = [](auto& api, auto member) -> Answer {
    return [&api, member](const std::shared_ptr<Exchange>& exchange) { (api.*member)(exchange); };
  };
  routes.push_back(working("POST", "/v1/chat/completions", to(*api_, &OpenAiApi::chat_completions)));
  routes.push_back(working("POST", "/v1/completions", to(*api_, &OpenAiApi::completions)));
  routes.push_back(working("POST", "/v1/responses", to(*responses_, &ResponsesApi::create)));
  constexpr const char* kResponse = "/v1/responses/{response_id}";
  routes.push_back(working("GET", kResponse, to(*responses_, &ResponsesApi::retrieve)));
  routes.push_back(working("DELETE", kResponse, to(*responses_, &ResponsesApi::remove)));
  routes.push_back(working("POST", std::string(kResponse) + "/cancel", to(*responses_, &ResponsesApi::cancel)));
  routes.push_back(
      working("GET", std::string(kResponse) + "/input_items", to(*responses_, &ResponsesApi::input_items)));
  routes.push_back(working("POST", "/v1/messages", to(*messages_, &MessagesApi::create)));
  routes.push_back(working("POST", "/v1/messages/count_tokens", to(*messages_, &MessagesApi::count_tokens)));
  routes.push_back(working("POST", "/tokenize", to(*api_, &OpenAiApi::tokenize)));
  routes.push_back(working("POST", "/detokenize", to(*api_, &OpenAiApi::detokenize)));
  if (config_.enable_tokenizer_info_endpoint) {
    routes.push_back(
        unparsed("GET", "/tokenizer_info", [this](const HttpRequest& r) { return api_->tokenizer_info(r.query); }));
  }
  routes.push_back(working("POST", "/v1/embeddings", to(*pooling_, &PoolingApi::embeddings)));
  routes.push_back(working("POST", "/pooling", to(*pooling_, &PoolingApi::pooling)));
  routes.push_back(working("POST", "/classify", to(*pooling_, &PoolingApi::classify)));
  for (const char* path : {"/v1/embed", "/v2/embed"}) {
    routes.push_back(working("POST", path, to(*pooling_, &PoolingApi::cohere_embed)));
  }
  for (const char* path : {"/v1/score", "/score"}) {
    routes.push_back(working("POST", path, to(*pooling_, &PoolingApi::score)));
  }
  for (const char* path : {"/v1/rerank", "/v2/rerank", "/rerank"}) {
    routes.push_back(working("POST", path, to(*pooling_, &PoolingApi::rerank)));
  }
}

void Server::Impl::add_batch_routes(std::vector<Route>& routes) {
  // The folder is opened after the routes are made.
  const auto to = [this](void (BatchApi::*member)(const std::shared_ptr<Exchange>&)) -> Answer {
    return [this, member](const std::shared_ptr<Exchange>& exchange) { (*batches_.*member)(exchange); };
  };
  routes.push_back(working("POST", kFiles, to(&BatchApi::upload_file)));
  routes.push_back(working("GET", kFiles, to(&BatchApi::list_files)));
  routes.push_back(working("GET", "/v1/files/{file_id}", to(&BatchApi::find_file)));
  routes.push_back(working("DELETE", "/v1/files/{file_id}", to(&BatchApi::remove_file)));
  routes.push_back(working("GET", "/v1/files/{file_id}/content", to(&BatchApi::file_content)));
  routes.push_back(working("POST", "/v1/batches", to(&BatchApi::create_batch)));
  routes.push_back(working("GET", "/v1/batches", to(&BatchApi::list_batches)));
  routes.push_back(working("GET", "/v1/batches/{batch_id}", to(&BatchApi::find_batch)));
  routes.push_back(working("POST", "/v1/batches/{batch_id}/cancel", to(&BatchApi::cancel_batch)));
}

void Server::Impl::add_admin_routes(std::vector<Route>& routes) {
  for (AdminRoute& route : admin_routes(*models_)) {
    routes.push_back(unparsed(std::move(route.method), std::move(route.path), std::move(route.answer)));
  }
}

// What shows how the server does, to clients or to operators.
std::vector<Route> Server::Impl::state_routes(bool operators) {
  return {{"GET", "/health", true, [this](const std::shared_ptr<Exchange>& exchange) { health(*exchange); }},
          {"GET", "/metrics", false,
           [this, operators](const std::shared_ptr<Exchange>& exchange) { metrics(*exchange, operators); }},
          {"GET", "/load", false, [this](const std::shared_ptr<Exchange>& exchange) {
             exchange->respond(json_response({{"server_load", num_served_.load()}}));
           }}};
}

std::vector<Route> Server::Impl::make_routes() {
  const auto json_route = [](std::string path, bool open, std::function<json::object()> make) {
    return Route{"GET", std::move(path), open, [make = std::move(make)](const std::shared_ptr<Exchange>& exchange) {
                   exchange->respond(json_response(make()));
                 }};
  };
  const auto healthy = [this](const std::shared_ptr<Exchange>& exchange) { health(*exchange); };
  std::vector<Route> routes = {
      json_route("/v1/models", false, [this] { return api_->model_list(); }),
      {"GET", "/v1/models/{model...}", false, [this](const std::shared_ptr<Exchange>& exchange) { model(*exchange); }},
      {"GET", "/ready", true, healthy},
      {"GET", "/ping", true, healthy},
      {"POST", "/ping", true, healthy},
      json_route("/version", true,
                 [this] {
                   return json::object{{"version", config_.version}};
                 }),
  };
  for (Route& route : state_routes(/*operators=*/false)) routes.push_back(std::move(route));
  if (config_.enable_page) {
    for (Route& route : page_routes()) routes.push_back(std::move(route));
  }
  if (config_.enable_openapi)
    routes.push_back({"GET", "/openapi.json", false, [this](const std::shared_ptr<Exchange>& exchange) {
                        exchange->respond({200, "application/json", {}, openapi_});
                      }});
  add_generating_routes(routes);
  if (!config_.batch_folder.empty()) add_batch_routes(routes);
  if (config_.enable_admin_endpoints) add_admin_routes(routes);
  return routes;
}

void Server::Impl::health(Exchange& exchange) const {
  if (draining_) return exchange.respond(error_response({503, "The server is shutting down.", "", "", 1}));
  if (!models_->healthy()) return exchange.respond(error_response({503, "The engine has failed.", "", "", 0}));
  if (const std::string trouble = models_->trouble(); !trouble.empty()) {
    return exchange.respond(error_response({503, fmt::format("Workers are started again: {}.", trouble), "", "", 1}));
  }
  const auto stuck = models_->busy_without_progress();
  if (config_.health_timeout.count() > 0 && stuck >= config_.health_timeout) {
    return exchange.respond(
        error_response({503,
                        fmt::format("The engine has made no progress for {} s.",
                                    std::chrono::duration_cast<std::chrono::seconds>(stuck).count()),
                        "", "", 0}));
  }
  exchange.respond(json_response({{"status", "ok"}}));
}

void Server::Impl::metrics(Exchange& exchange, bool operators) const {
  metrics_.gauge("vllm:http_connections", "Open connections.").set(static_cast<double>(http_->num_connections()));
  exchange.respond({200,
                    "text/plain; version=0.0.4; charset=utf-8",
                    {},
                    operators ? metrics_.text() + key_metrics_.text() : metrics_.text()});
}

void Server::Impl::model(Exchange& exchange) const {
  const auto card = api_->model_card(exchange.request().argument);
  if (card.ok()) return exchange.respond(json_response(*card));
  answer_error(exchange, card.status());
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Server>> Server::start(ServerConfig config, engine::Engine& engine) {
  ModelSource model = resident_model(config, engine);
  return start(std::move(config), {std::move(model)}, engine.metrics());
}

Result<std::unique_ptr<Server>> Server::start(ServerConfig config, std::vector<ModelSource> models, Metrics& metrics) {
  if (config.worker_threads < 1) return invalid_argument("The server needs at least one worker thread.");
  QUIRE_RETURN_IF_ERROR(check(config.cors));
  QUIRE_RETURN_IF_ERROR(check_allowed_hosts(config.allowed_hosts));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<ApiKey> keys,
                         all_api_keys(config.api_keys, config.api_key_weights, config.named_api_keys));
  config.api_keys.clear();
  config.api_key_weights.clear();
  for (const ApiKey& key : keys) {
    config.api_keys.push_back(key.key);
    config.api_key_weights.push_back(key.weight);
  }
  if (config.tool_call_parser != "auto") QUIRE_RETURN_IF_ERROR(grammar::tool_format(config.tool_call_parser).status());
  if (config.reasoning_parser != "auto") {
    QUIRE_RETURN_IF_ERROR(grammar::reasoning_format(config.reasoning_parser).status());
  }
  if (config.uds.empty() && keys.empty() && !is_loopback(config.host)) {
    log_warning(
        "anybody who reaches {} port {} may use this server: set --api-key or --api-key-file, or --host 127.0.0.1",
        config.host, config.port);
  }
  QUIRE_RETURN_IF_ERROR(check_root_path(config.root_path));
  auto impl = std::make_unique<Impl>(std::move(config), keys, metrics);
  QUIRE_RETURN_IF_ERROR(impl->start(std::move(models)));
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::~Server() {
  impl_->stop(/*drain=*/false);
}

std::vector<std::string> Server::routes() const {
  std::vector<std::string> out;
  for (const Route& route : impl_->routes().all()) out.push_back(route.method + " " + route.path);
  return out;
}
uint16_t Server::port() const {
  return impl_->http().port();
}
uint16_t Server::admin_port() const {
  return impl_->admin_port();
}
int64_t Server::num_connections() const {
  return impl_->http().num_connections();
}
bool Server::healthy() const {
  return impl_->healthy();
}
void Server::drain_and_stop() {
  impl_->stop(/*drain=*/true);
}

}  // namespace quire::server
