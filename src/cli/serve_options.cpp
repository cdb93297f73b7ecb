#include "cli/serve_options.h"

#include <sys/stat.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <boost/json.hpp>

#include "base/log.h"
#include "base/named_file.h"
#include "checkpoint/mapped_file.h"
#include "cli/numbers.h"
#include "cli/options.h"
#include "cli/span_options.h"
#include "cli/vllm_arguments.h"

namespace quire::cli {
namespace {

Status read_api_keys(const std::string& path, std::vector<server::ApiKey>& keys) {
  if (Status status = check_file(path, FileUse::kReadAgain); !status.ok()) {
    return std::move(status).with_prefix("--api-key-file: ");
  }
  struct stat found {};
  std::ifstream file(path, std::ios::binary);
  if (::stat(path.c_str(), &found) != 0 || !file) return not_found("--api-key-file: \"{}\" cannot be read", path);
  if ((found.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    log_warning("others than its owner have access to the file of API keys, {}", path);
  }
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  auto read = server::parse_api_keys(text);
  if (!read.ok()) return Status(read.status()).with_prefix("--api-key-file: " + path + ": ");
  if (read->empty()) return invalid_argument("--api-key-file: there is no key in {}.", path);
  keys = std::move(*read);
  return {};
}

// "auto": the model's own; "vllm": none; else a folder, or the file itself.
Status read_generation_config(const std::string& where, server::ServerConfig& config) {
  config.use_generation_config = where == "auto";
  if (where == "auto" || where == "vllm") return {};
  std::filesystem::path file = where;
  if (std::filesystem::is_directory(file)) file /= "generation_config.json";
  QUIRE_ASSIGN_OR_RETURN(config.generation_config, checkpoint::read_text_file(file, 1 << 20));
  return {};
}

Status read_mode(const char* flag, const std::string& text, uint32_t& mode) {
  const bool octal = !text.empty() && text.size() <= 5 && text.find_first_not_of("01234567") == std::string::npos;
  const unsigned long value = octal ? std::stoul(text, nullptr, 8) : 01000;
  if (value > 0777) return invalid_argument("{}: {} is no file mode; one looks like 0660.", flag, text);
  mode = static_cast<uint32_t>(value);
  return {};
}

// vLLM takes JSON lists; names alone are easier to type.
Status read_list(const char* flag, const std::vector<std::string>& given, std::vector<std::string>& list) {
  if (given.empty()) return {};
  list.clear();
  for (const std::string& text : given) {
    if (!text.starts_with('[')) {
      list.push_back(text);
      continue;
    }
    boost::system::error_code error;
    const boost::json::value value = boost::json::parse(text, error);
    if (error || !value.is_array()) return invalid_argument("{}: {} is no JSON list of strings.", flag, text);
    for (const boost::json::value& entry : value.get_array()) {
      if (!entry.is_string()) return invalid_argument("{}: {} is no JSON list of strings.", flag, text);
      list.emplace_back(entry.get_string());
    }
  }
  return {};
}

void add_listening(CLI::App& command, ServeOptions& options) {
  constexpr const char* kGroup = "Listening";
  server::ServerConfig& server = options.server;
  auto* host = command.add_option("--host", server.host, "Address to listen on")->group(kGroup)->capture_default_str();
  auto* port = command.add_option("--port", server.port, "Port to listen on; 0: any free one")
                   ->group(kGroup)
                   ->check(as_port())
                   ->capture_default_str();
  auto* uds = command.add_option("--uds", server.uds, "A Unix socket to listen on, instead of host and port")
                  ->group(kGroup)
                  ->excludes(host)
                  ->excludes(port);
  command.add_option("--uds-mode", options.uds_mode, "The socket's permissions, octal")
      ->group(kGroup)
      ->needs(uds)
      ->capture_default_str();
  command
      .add_option("--kv-events-config", options.kv_events_config,
                  "Publishes what comes into the prefix cache and leaves it, for routers (docs/offload.md): "
                  "{\"enable_kv_cache_events\": true, \"endpoint\": \"tcp://*:5557\", \"replay_endpoint\": ...}")
      ->group(kGroup);
  command
      .add_option("--kv-transfer-config", options.kv_transfer_config,
                  "Sends blocks of computed prompts to other instances, or fetches them (docs/transfer.md): "
                  "{\"kv_connector\": \"QuireConnector\", \"kv_role\": \"kv_producer\", \"kv_port\": 14579}; needs "
                  "--kv-offloading-size")
      ->group(kGroup);
  const auto tls = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group(kGroup);
  };
  tls("--ssl-certfile", server.tls.certfile, "HTTPS with this certificate and its chain (PEM); TLS 1.2 or later");
  tls("--ssl-keyfile", server.tls.keyfile, "The certificate's key (PEM), where it is not in the same file");
  tls("--ssl-ca-certs", server.tls.ca_certs, "Certificates (PEM) that those of clients are checked against");
  tls("--ssl-cert-reqs", server.tls.cert_reqs, "Clients' certificates: 0 not asked for, 1 optional, 2 required")
      ->capture_default_str();
  const auto list = [&](const char* name, std::vector<std::string>& value, const char* help) {
    return command.add_option(name, value, help)->group(kGroup)->allow_extra_args(false);
  };
  list("--allowed-hosts", options.allowed_hosts,
       "Names under which requests may come, without a port: [\"chat.example\"], or one name a flag; \"*\": any. "
       "Nothing: "
       "on a loopback address its names alone, else any");
  auto* origins = list("--allowed-origins", options.allowed_origins,
                       "Whose pages a browser lets talk to this server (CORS): [\"https://chat.example\"], or one "
                       "origin a flag; \"*\": all. Nothing: none");
  list("--allowed-methods", options.allowed_methods, "Methods that those pages may use; all otherwise")->needs(origins);
  list("--allowed-headers", options.allowed_headers, "Header fields that they may send; all otherwise")->needs(origins);
  command
      .add_flag("--allow-credentials,!--no-allow-credentials", server.cors.credentials,
                "They may send cookies; not with \"*\"")
      ->group(kGroup)
      ->needs(origins);
}

// What answers and pages look like from outside.
void add_api(CLI::App& command, ServeOptions& options) {
  constexpr const char* kGroup = "Server";
  server::ServerConfig& server = options.server;
  command
      .add_option("--root-path", server.root_path,
                  "The path under which a proxy has this server (/llm); requests may come with it or without")
      ->group(kGroup);
  command
      .add_option(
          "--fingerprint-mode", server.fingerprint_mode,
          "Answers' system_fingerprint, of version, model and device: full (quire-VERSION-HASH), hash (fp_HASH), "
          "custom (--fingerprint-value), none")
      ->check(CLI::IsMember({"full", "hash", "custom", "none"}))
      ->group(kGroup)
      ->capture_default_str();
  command
      .add_option("--fingerprint-value", server.fingerprint_value,
                  "The system_fingerprint of --fingerprint-mode custom")
      ->group(kGroup);
  command.add_option("--response-role", server.response_role, "The role of chats' answers")
      ->group(kGroup)
      ->capture_default_str();
  command
      .add_flag("--enable-force-include-usage,!--no-enable-force-include-usage", server.force_include_usage,
                "Every stream ends with its usage, whatever its stream_options")
      ->group(kGroup);
  command
      .add_option("--default-chat-template-kwargs", server.default_chat_template_kwargs,
                  "JSON: template variables of requests that do not set them, for example {\"enable_thinking\": false}")
      ->group(kGroup);
  command
      .add_flag("--exclude-tools-when-tool-choice-none,!--no-exclude-tools-when-tool-choice-none",
                server.exclude_tools_when_none, "Templates do not see tools that tool_choice \"none\" forbids")
      ->group(kGroup);
  command
      .add_flag("--return-tokens-as-token-ids,!--no-return-tokens-as-token-ids", server.return_tokens_as_token_ids,
                "Logprobs spell tokens as token_id:N unless a request says otherwise")
      ->group(kGroup);
  command.add_flag("!--disable-fastapi-docs,--no-disable-fastapi-docs", server.enable_openapi, "No /openapi.json")
      ->group(kGroup);
  command
      .add_option("--preparation-timeout", options.preparation_timeout_seconds,
                  "Seconds of a processor that a request may take before the engine has it: its template, its tokens")
      ->group(kGroup)
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  command.add_option("--h11-max-header-count", server.max_headers, "Most fields of a request's header")
      ->group(kGroup)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--h11-max-incomplete-event-size", server.max_header_bytes, "Most bytes of a request's header")
      ->group(kGroup)
      ->check(CLI::Range(size_t{1024}, size_t{16} << 20))
      ->capture_default_str();
}

void add_keys(CLI::App& command, ServeOptions& options) {
  constexpr const char* kGroup = "Who may ask";
  server::ServerConfig& server = options.server;
  command
      .add_option("--api-key", server.api_keys,
                  "Clients must send one of these keys; may be given several times. Each key has its share of the work")
      ->group(kGroup);
  command
      .add_option("--api-key-weights", server.api_key_weights,
                  "The keys' shares, one a key in the same order (2,1,1); all alike otherwise")
      ->group(kGroup)
      ->delimiter(',');
  command
      .add_option("--api-key-file", options.api_key_file,
                  "More keys, a line each: NAME KEY [weight=W] [tokens-per-minute=N]; lines with # are comments")
      ->group(kGroup);
  command
      .add_flag("--share-prefix-cache-across-keys,!--no-share-prefix-cache-across-keys",
                server.share_prefix_cache_across_keys,
                "A prompt that begins as another key's did is answered from the same blocks. Keys can learn from that "
                "what others ask: for keys of one party alone")
      ->group(kGroup);
}

void add_operators(CLI::App& command, ServeOptions& options) {
  constexpr const char* kGroup = "Operators";
  server::ServerConfig& server = options.server;
  command
      .add_flag("--enable-tokenizer-info-endpoint,!--no-enable-tokenizer-info-endpoint",
                server.enable_tokenizer_info_endpoint,
                "GET /tokenizer_info: the tokenizer's configuration and the chat template, for clients")
      ->group(kGroup);
  command
      .add_flag("--enable-admin-endpoints", server.enable_admin_endpoints,
                "POST /reset_prefix_cache, /sleep, /wake_up, /models/load, /models/unload, GET /is_sleeping, GET "
                "/admin/flight_recorder?steps=N, "
                "GET /admin/requests/{id} for clients")
      ->group(kGroup);
  auto* port = command
                   .add_option("--admin-port", server.admin.port,
                               "The same, and the log's level, on a port of their own; 0: any free one")
                   ->group(kGroup)
                   ->check(as_port());
  command.add_option("--admin-host", server.admin.host, "The address of that port")
      ->group(kGroup)
      ->needs(port)
      ->capture_default_str();
  auto* uds =
      command.add_option("--admin-uds", server.admin.uds, "The same on a Unix socket")->group(kGroup)->excludes(port);
  command.add_option("--admin-uds-mode", options.admin_uds_mode, "The socket's permissions, octal")
      ->group(kGroup)
      ->needs(uds)
      ->capture_default_str();
  command
      .add_option("--admin-api-key", server.admin.api_keys,
                  "Operators must send one of these keys there; clients' keys are not taken")
      ->group(kGroup);
  command
      .add_option("--health-timeout", options.health_timeout_seconds,
                  "Seconds without progress after which GET /health says 503; 0: never")
      ->group(kGroup)
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command
      .add_option("--shutdown-timeout", options.shutdown_timeout_seconds,
                  "Seconds that running answers have to finish after SIGTERM")
      ->group(kGroup)
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

void add_logging(CLI::App& command, ServeOptions& options) {
  constexpr const char* kGroup = "Log";
  server::ServerConfig& server = options.server;
  server.access_log = true;
  command.add_option("--log-format", options.log_format, "text, or json: an object a line")
      ->group(kGroup)
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command.add_option("--log-level", options.log_level, "The least that is written: debug, info, warning, error")
      ->group(kGroup)
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
  command
      .add_flag("!--disable-access-log,!--disable-uvicorn-access-log,--no-disable-uvicorn-access-log",
                server.access_log, "No line for each request that is over")
      ->group(kGroup);
  command
      .add_option("--disable-access-log-for-endpoints", server.unlogged_paths,
                  "No such line for these paths (/health,/metrics)")
      ->group(kGroup)
      ->delimiter(',');
  command
      .add_flag("!--disable-log-stats,--no-disable-log-stats", options.log_stats,
                "No line of throughput and load every ten seconds in which something was done")
      ->group(kGroup);
  command
      .add_option("--uvicorn-log-level", options.uvicorn_log_level,
                  "Of the HTTP server's own lines, those of requests that are over: none from warning on")
      ->group(kGroup)
      ->check(CLI::IsMember({"critical", "error", "warning", "info", "debug", "trace"}));
  command
      .add_option("--otlp-traces-endpoint", options.otlp_traces_endpoint,
                  "A span for each request to a model goes to this collector of OpenTelemetry, by HTTP: "
                  "http://HOST:4318/v1/traces; otherwise $OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
      ->group(kGroup)
      ->check(as_spans_endpoint());
  auto* requests =
      command
          .add_flag("--enable-log-requests,--no-disable-log-requests,!--no-enable-log-requests,!--disable-log-requests",
                    server.enable_log_requests, "A line for each that begins, without its text")
          ->group(kGroup);
  command.add_option("--max-log-len", server.max_log_len, "With so many bytes of its prompt after all")
      ->group(kGroup)
      ->needs(requests)
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

constexpr const char* kServerGroup = "Server";

void add_served_model(CLI::App& command, ServeOptions& options) {
  server::ServerConfig& server = options.server;
  command
      .add_option("--served-model-name", server.served_model_names,
                  "Name (or names) in the API; the file's name, or the model's on the Hub, otherwise")
      ->group(kServerGroup);
  command.add_flag("!--disable-page", server.enable_page, "No chat page at / and no dashboard at /dashboard")
      ->group(kServerGroup);
  command
      .add_option(
          "--tool-call-parser", server.tool_call_parser,
          "How the model writes calls of tools: auto (what its chat template shows), hermes, llama3_json, "
          "mistral, qwen3_coder (qwen3_xml), pythonic, llama4_pythonic, deepseek_v3, deepseek_v31, glm45, granite, "
          "hunyuan_a13b, internlm, jamba, kimi_k2, minimax_m2, phi4_mini_json, step3, gemma4, nemotron_json, seed_oss, "
          "lfm2, olmo3, openai, none")
      ->capture_default_str()
      ->group(kServerGroup);
  command
      .add_option("--reasoning-parser", server.reasoning_parser,
                  "How the model writes its reasoning: auto, deepseek_r1, qwen3, granite, mistral, glm45, "
                  "gemma4, openai_gptoss, none")
      ->capture_default_str()
      ->group(kServerGroup);
  command
      .add_option("--generation-config", options.generation_config,
                  "Sampling of requests that do not say: auto (the model's generation_config.json), vllm (none), or a "
                  "folder or file with another")
      ->capture_default_str()
      ->group(kServerGroup);
  command
      .add_option("--override-generation-config", server.override_generation_config,
                  "JSON over it, for example {\"temperature\": 0.6}")
      ->group(kServerGroup);
}

// What outlives its connection: stored responses, files and batches.
void add_kept_answers(CLI::App& command, ServeOptions& options) {
  server::ServerConfig& server = options.server;
  command
      .add_option("--max-stored-responses", server.max_stored_responses,
                  "Answers of /v1/responses that are kept, in memory; the oldest of the key with the most go first")
      ->group(kServerGroup)
      ->capture_default_str();
  command
      .add_option("--max-stored-response-bytes", server.max_stored_response_bytes, "All of them together (64M, ...)")
      ->group(kServerGroup)
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->capture_default_str();
  command
      .add_option("--batch-folder", server.batch_folder,
                  "Where /v1/files and /v1/batches keep what is theirs; without it they are not there")
      ->group(kServerGroup);
  command
      .add_option("--max-batch-folder-bytes", server.max_batch_folder_bytes,
                  "All uploaded files and answers together; each key has a share (4G, ...)")
      ->group(kServerGroup)
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->capture_default_str();
  command.add_option("--batch-concurrency", server.batch_concurrency, "Lines of batches that are asked at once")
      ->group(kServerGroup)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

// What requests may ask for, and what holds where they say nothing.
void add_request_rules(CLI::App& command, ServeOptions& options) {
  server::ServerConfig& server = options.server;
  command.add_flag("--return-token-ids", server.return_token_ids, "Return token ids unless a request says otherwise")
      ->group(kServerGroup);
  command
      .add_flag("--trust-request-chat-template,!--no-trust-request-chat-template", server.trust_request_chat_template,
                "Render chat templates that requests bring")
      ->group(kServerGroup);
  command
      .add_option("--max-logprobs", options.engine.max_logprobs,
                  "Most logprobs that a request may ask for; -1: the whole vocabulary")
      ->group(kServerGroup)
      ->capture_default_str();
  command
      .add_option("--max-answer-bytes", server.max_answer_bytes,
                  "What the logprobs and repeated prompts of an answer may come to as text, and those of all that are "
                  "under way in memory; each key has a share (1G, ...)")
      ->group(kServerGroup)
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--seed", options.engine.seed, "Of requests that bring none")
      ->group(kServerGroup)
      ->capture_default_str();
}

}  // namespace

void add_serve_options(CLI::App& command, ServeOptions& options) {
  // The order is the help's.
  add_served_model(command, options);
  add_kept_answers(command, options);
  add_request_rules(command, options);
  command
      .add_option("--config", options.config_file,
                  "A file of arguments, YAML as vLLM's: `key: value` lines; flags go before it")
      ->group(kServerGroup);
  add_api(command, options);
  add_listening(command, options);
  add_keys(command, options);
  add_operators(command, options);
  add_logging(command, options);
  add_engine_options(command, options.engine);
  add_node_options(command, options.nodes);
  add_hub_options(command, options.hub);
  add_vllm_arguments(command, options.notes);
  command.footer(
      "vLLM's other arguments are taken where they change nothing, and refused with the reason where they would:\n"
      "docs/arguments.md. VLLM_API_KEY in the environment is the key where no flag gives one.");
}

Status complete_serve_options(ServeOptions& options) {
  if (!options.kv_events_config.empty()) {
    QUIRE_ASSIGN_OR_RETURN(options.kv_events, server::KvEventsConfig::parse(options.kv_events_config));
    options.engine.enable_kv_cache_events = options.kv_events.enabled;
  }
  if (!options.kv_transfer_config.empty() && options.kv_transfer_config != "{}") {
    const char* secret = std::getenv("QUIRE_KV_TRANSFER_SECRET");
    QUIRE_ASSIGN_OR_RETURN(options.kv_transfer, server::KvTransferConfig::parse(options.kv_transfer_config,
                                                                                secret == nullptr ? "" : secret));
    options.engine.kv_transfer = true;
  }
  server::ServerConfig& server = options.server;
  QUIRE_ASSIGN_OR_RETURN(server.spans, read_span_options(options.otlp_traces_endpoint, environment, options.notes));
  if ((server.fingerprint_mode == "custom") == server.fingerprint_value.empty()) {
    return invalid_argument("--fingerprint-mode custom and --fingerprint-value belong together.");
  }
  if (!server.admin.api_keys.empty() && !server.admin.on()) {
    return invalid_argument("--admin-api-key needs --admin-port or --admin-uds.");
  }
  if (!options.api_key_file.empty()) {
    QUIRE_RETURN_IF_ERROR(read_api_keys(options.api_key_file, server.named_api_keys));
  }
  const char* key = std::getenv("VLLM_API_KEY");
  if (key != nullptr && *key != '\0' && server.api_keys.empty() && server.named_api_keys.empty()) {
    server.api_keys.emplace_back(key);
  }
  const std::string& level = options.uvicorn_log_level;
  if (level == "critical" || level == "error" || level == "warning") server.access_log = false;
  QUIRE_ASSIGN_OR_RETURN(options.adapters, read_lora_modules(options.lora_modules, options.engine));
  QUIRE_RETURN_IF_ERROR(read_generation_config(options.generation_config, server));
  QUIRE_RETURN_IF_ERROR(read_mode("--uds-mode", options.uds_mode, server.uds_mode));
  QUIRE_RETURN_IF_ERROR(read_mode("--admin-uds-mode", options.admin_uds_mode, server.admin.uds_mode));
  QUIRE_RETURN_IF_ERROR(read_list("--allowed-hosts", options.allowed_hosts, server.allowed_hosts));
  QUIRE_RETURN_IF_ERROR(read_list("--allowed-origins", options.allowed_origins, server.cors.origins));
  QUIRE_RETURN_IF_ERROR(read_list("--allowed-methods", options.allowed_methods, server.cors.methods));
  QUIRE_RETURN_IF_ERROR(read_list("--allowed-headers", options.allowed_headers, server.cors.headers));
  server.max_preparation_time = std::chrono::milliseconds(std::llround(options.preparation_timeout_seconds * 1000));
  server.health_timeout = std::chrono::milliseconds(std::llround(options.health_timeout_seconds * 1000));
  server.drain_deadline = std::chrono::seconds(options.shutdown_timeout_seconds);
  return {};
}

}  // namespace quire::cli
