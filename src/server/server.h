// The OpenAI-compatible server over one engine, or several models that are loaded as they are asked for.
//
//   POST /v1/chat/completions  /v1/completions          GET /v1/models  /v1/models/{name}
//   POST /v1/responses, and those kept: server/responses_api.h
//   POST /v1/messages  /v1/messages/count_tokens        Anthropic's
//        /v1/files  /v1/batches                         with a folder for them: server/batch_api.h
//   POST /tokenize  /detokenize                         GET /health  /ping  /version  /metrics  /load  /openapi.json
//   GET /  /dashboard  /page/...: server/static_files.h
//   and for operators, where enabled: server/admin.h, server/admin_server.h
//
// With API keys set every route asks for `Authorization: Bearer KEY` or `x-api-key: KEY` except the page, /health,
// /ping and /version; so do paths that do not exist. Bodies of requests are parsed, templates rendered and prompts
// tokenized on a few threads of their own; answers are written by the I/O threads as fast as each client reads, and no
// faster.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "server/admin_server.h"
#include "server/api_keys.h"
#include "server/cors.h"
#include "server/http_server.h"
#include "server/kv_transfer.h"
#include "server/sampling_fields.h"
#include "server/span_exporter.h"

namespace quire::server {

struct ServerConfig {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any free one
  std::string uds;       // a Unix socket's path, instead of host and port
  uint32_t uds_mode = 0600;
  TlsOptions tls;
  std::vector<std::string> served_model_names;  // of the one engine; the first is the one answers name by default
  std::vector<std::string> api_keys;            // each is a tenant; none here nor below: nobody is asked for one
  std::vector<double> api_key_weights;          // of their shares of the work; empty: all alike
  std::vector<ApiKey> named_api_keys;           // more of them; start() adds them to the two lists above
  // Else a cached prefix is found by requests of its own key alone: how long an answer takes to begin, and the number
  // of cached tokens in its usage, would tell one key what another has asked.
  bool share_prefix_cache_across_keys = false;
  bool enable_tokenizer_info_endpoint = false;  // tells clients the chat template
  bool enable_admin_endpoints = false;          // on the clients' listener too; else they are not there
  AdminConfig admin;                            // a listener of their own
  std::vector<std::string> allowed_hosts;       // names that requests may come under: SiteOptions
  CorsOptions cors;
  // Of a proxy in front: the path under which it has this server. Requests come with it or, where the proxy takes it
  // off, without. "/llm"; empty: none.
  std::string root_path;
  bool enable_openapi = true;               // GET /openapi.json
  bool enable_page = true;                  // for people: chat and dashboard
  std::string root_model;                   // of the one engine: shown as `root`, a name, no path of this machine
  std::string version = "0.1.0";            // of the program
  bool return_token_ids = false;            // for requests that do not say
  bool return_tokens_as_token_ids = false;  // the same
  bool force_include_usage = false;         // streams end with the usage, whatever their stream_options
  std::string response_role = "assistant";  // of chats' messages
  // Of chats: a JSON object of template variables for requests that do not set them; empty: none.
  std::string default_chat_template_kwargs;
  // What answers have as system_fingerprint: full (quire-VERSION-HASH), hash (fp_HASH), custom (fingerprint_value) or
  // none. The hash is of the version, the model and what it runs on.
  std::string fingerprint_mode = "full";
  std::string fingerprint_value;
  bool exclude_tools_when_none = false;  // of chats with tool_choice "none": the template sees no tools
  // How the model writes calls of tools and its reasoning: a name of grammar/answer_reading.h, or what its chat
  // template shows.
  std::string tool_call_parser = "auto";
  std::string reasoning_parser = "auto";
  // Sampling for requests that do not say: JSON as of a generation_config.json. The model's own, unless
  // use_generation_config is false or `generation_config` stands in its place; `override_generation_config` over it.
  bool use_generation_config = true;
  std::string generation_config;
  std::string override_generation_config;
  bool trust_request_chat_template = false;         // render templates that clients send (in our sandbox)
  bool enable_log_requests = false;                 // a line a request when it begins
  int64_t max_log_len = 0;                          // bytes of its prompt in that line; the prompt is nowhere else
  bool access_log = false;                          // a line a request when it is over
  std::vector<std::string> unlogged_paths;          // without one
  SpanExportOptions spans;                          // one a request to a model; off without an endpoint
  std::chrono::milliseconds health_timeout{60000};  // for the engine to get on while it has work; 0: for ever

  std::shared_ptr<KvTransfer> kv_transfer;  // blocks of prompts to other instances and from them; nullptr: off

  int64_t models_memory_bytes = 0;                  // of all that are loaded, with their KV caches; 0: no bound
  size_t max_loaded_models = 0;                     // at once; 0: no bound
  std::chrono::milliseconds model_idle_timeout{0};  // after which one that nobody uses is unloaded; 0: never

  int io_threads = 2;
  int worker_threads = 2;
  std::chrono::milliseconds max_preparation_time{10000};  // of a worker, for one request
  size_t max_queued_work = 1024;                          // requests that wait for a worker; beyond it: 429
  size_t max_connections = 10000;
  size_t max_header_bytes = 64 << 10;
  size_t max_headers = 128;
  size_t max_body_bytes = 32 << 20;
  size_t max_buffered_bytes = 512 << 20;  // bodies of all requests until they are prepared; beyond it: 503
  // What answers may become of log-probabilities and repeated prompts: the text of one (beyond it: 400), and what all
  // that are under way may hold in memory (429).
  size_t max_answer_bytes = size_t{1} << 30;
  size_t max_unsent_bytes = 512 << 20;  // of answers that clients have not taken yet; beyond it: 503
  int64_t max_prompts = 1024;           // of one completion request
  int64_t max_n = 128;
  int64_t max_stop = 1024;                            // stop strings of a request
  size_t max_stored_responses = 1000;                 // of /v1/responses; the oldest go first
  size_t max_stored_response_bytes = 64 << 20;        // all of them together
  std::string batch_folder;                           // of /v1/files and /v1/batches; empty: they are not there
  int64_t max_batch_folder_bytes = int64_t{4} << 30;  // of uploads and answers
  int64_t batch_concurrency = 8;                      // lines of batches that are asked at once
  std::chrono::milliseconds header_timeout{15000};
  std::chrono::milliseconds body_timeout{60000};
  std::chrono::milliseconds idle_timeout{120000};
  std::chrono::milliseconds write_timeout{60000};  // of a client that takes less than the next line's rate
  size_t min_read_rate = 1024;                     // bytes a second of an answer that waits for its client
  std::chrono::milliseconds linger_timeout{2000};
  std::chrono::milliseconds drain_deadline{30000};  // for running answers when the server stops
  std::chrono::milliseconds drain_grace{3000};      // then, for aborted ones to be written
};

// A model that can be loaded, and loaded again.
struct ModelSource {
  std::vector<std::string> names;     // as requests call it; the first is the one that answers name by default
  std::string root;                   // shown as `root`: a name, no path of this machine; empty: as the name
  std::vector<std::string> adapters;  // that loading it gives their names: no model's
  // Where an adapter lies that it would find by its name when somebody asks for it; empty: nowhere. May be none.
  std::function<std::string(std::string_view)> adapter_path;
  bool keeps_blocks = false;  // of the prefix cache, while it is not loaded
  int64_t bytes = 0;          // that it takes while it is loaded; counted only where there is a bound
  int64_t max_model_len = 0;  // 0: not known before it is loaded
  std::optional<SamplingDefaults> chat_sampling;  // as Models::Listed has it
  // By one thread at a time. The engine's metrics are the server's.
  std::function<Result<std::shared_ptr<engine::Engine>>()> load;
};

class Server {
 public:
  // Listens and serves until stopped. The engine must outlive the server.
  // Errors: invalid_argument (no model name, a bad host, API keys that all_api_keys() refuses), unavailable (the port
  // is taken; the batch folder cannot be used).
  static Result<std::unique_ptr<Server>> start(ServerConfig config, engine::Engine& engine);
  // The same with models of which the first is loaded at once. The metrics must outlive the server. Errors: also those
  // of loading; invalid_argument (two models of one name, one that is larger than all together may be).
  static Result<std::unique_ptr<Server>> start(ServerConfig config, std::vector<ModelSource> models, Metrics& metrics);
  ~Server();  // stops at once
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;        // 0 on a Unix socket
  uint16_t admin_port() const;  // 0: there is none
  int64_t num_connections() const;
  bool healthy() const;  // false: an engine has failed, and the process should end
  // "GET /v1/models" for each route.
  std::vector<std::string> routes() const;

  // Accepts no more; new requests on open connections get 503; running answers finish, or after the drain deadline end
  // with finish_reason "abort". Returns when everything is closed. Idempotent.
  void drain_and_stop();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
