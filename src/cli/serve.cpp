// quire serve: the OpenAI-compatible server.
#include <pthread.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>

#include "base/log.h"
#include "checkpoint/mapped_file.h"
#include "cli/backend.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "engine/engine.h"
#include "server/server.h"

namespace quire::cli {
namespace {

struct ServeOptions {
  EngineConfig engine;
  server::ServerConfig server;
  std::string generation_config = "auto";
  int64_t shutdown_timeout_seconds = 30;
};

// The last component of the path, however it is spelled ("models/", ".").
std::string model_name(const std::string& path) {
  const std::filesystem::path normal = std::filesystem::absolute(path).lexically_normal();
  return (normal.has_filename() ? normal : normal.parent_path()).filename().string();
}

// Blocks SIGINT and SIGTERM in this thread and all that it will start, so that one place takes them.
class SignalWait {
 public:
  SignalWait() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
  }
  // 0 when none came within the time.
  int wait(std::chrono::milliseconds time) const {
    const timespec timeout{.tv_sec = time.count() / 1000, .tv_nsec = time.count() % 1000 * 1000000};
    const int signal = sigtimedwait(&signals_, nullptr, &timeout);
    return signal > 0 ? signal : 0;
  }
  // The next one ends the process the usual way.
  void release() const { pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr); }

 private:
  sigset_t signals_;
};

// "auto": the model's own; "vllm": none; else a folder, or the file itself.
Status read_generation_config(const std::string& where, server::ServerConfig& config) {
  config.use_generation_config = where == "auto";
  if (where == "auto" || where == "vllm") return {};
  std::filesystem::path file = where;
  if (std::filesystem::is_directory(file)) file /= "generation_config.json";
  QUIRE_ASSIGN_OR_RETURN(config.generation_config, checkpoint::read_text_file(file, 1 << 20));
  return {};
}

Status run(ServeOptions& options) {
  const SignalWait signals;
  const auto start = std::chrono::steady_clock::now();
  QUIRE_RETURN_IF_ERROR(resolve_model(options.engine));
  QUIRE_RETURN_IF_ERROR(read_generation_config(options.generation_config, options.server));
  options.server.version = QUIRE_VERSION;
  options.server.drain_deadline = std::chrono::seconds(options.shutdown_timeout_seconds);
  options.server.root_model = model_name(options.engine.model);
  if (options.server.served_model_names.empty()) options.server.served_model_names = {options.server.root_model};
  options.engine.served_model_name = options.server.served_model_names.front();

  QUIRE_ASSIGN_OR_RETURN(auto executor, make_executor(options.engine));
  log_info("{}: {}, {} on {}", options.server.root_model, executor->model().architecture, executor->model().dtype,
           executor->description());
  log_info("memory:\n{}", executor->memory().to_string());
  QUIRE_ASSIGN_OR_RETURN(auto engine, engine::Engine::create(options.engine, std::move(executor)));
  QUIRE_ASSIGN_OR_RETURN(auto server, server::Server::start(options.server, *engine));
  log_info("ready in {:.2f} s: http://{}:{}/v1{}",
           std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), options.server.host,
           server->port(), options.server.enable_page ? ", and / in a browser" : "");
  while (engine->healthy()) {
    const int signal = signals.wait(std::chrono::milliseconds(500));
    if (signal == 0) continue;
    log_info("signal {}: no new requests; running answers are finished (again: stop at once)", signal);
    signals.release();
    server->drain_and_stop();
    log_info("stopped");
    return {};
  }
  server->drain_and_stop();
  return internal_error("the engine has failed; see the log above");
}

}  // namespace

void add_serve_command(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<ServeOptions>();
  server::ServerConfig& server = options->server;
  CLI::App* command = program.add_subcommand("serve", "OpenAI-compatible HTTP server");
  add_model_argument(*command, options->engine);
  constexpr const char* kServer = "Server";
  command->add_option("--host", server.host, "Address to listen on")->group(kServer)->capture_default_str();
  command->add_option("--port", server.port, "Port to listen on; 0: any free one")
      ->group(kServer)
      ->capture_default_str();
  command
      ->add_option("--served-model-name", server.served_model_names,
                   "Name (or names) in the API; the file's name otherwise")
      ->group(kServer);
  command
      ->add_option(
          "--api-key", server.api_keys,
          "Clients must send one of these keys; may be given several times. Each key has its share of the work")
      ->group(kServer);
  command
      ->add_option("--api-key-weights", server.api_key_weights,
                   "The keys' shares, one a key in the same order (2,1,1); all alike otherwise")
      ->group(kServer)
      ->delimiter(',');
  command
      ->add_flag("--enable-admin-endpoints", server.enable_admin_endpoints,
                 "POST /reset_prefix_cache, GET /admin/flight_recorder?steps=N, GET /admin/requests/{id}")
      ->group(kServer);
  command->add_flag("!--disable-page", server.enable_page, "No chat page at / and no dashboard at /dashboard")
      ->group(kServer);
  command
      ->add_option("--tool-call-parser", server.tool_call_parser,
                   "How the model writes calls of tools: auto (what its chat template shows), hermes, llama3_json, "
                   "mistral, qwen3_coder, pythonic, deepseek_v3, glm45, granite, kimi_k2, minimax_m2, openai, none")
      ->capture_default_str()
      ->group(kServer);
  command
      ->add_option("--reasoning-parser", server.reasoning_parser,
                   "How the model writes its reasoning: auto, deepseek_r1, qwen3, granite, mistral, glm45, "
                   "openai_gptoss, none")
      ->capture_default_str()
      ->group(kServer);
  command
      ->add_option("--generation-config", options->generation_config,
                   "Sampling of requests that do not say: auto (the model's generation_config.json), vllm (none), or a "
                   "folder or file with another")
      ->capture_default_str()
      ->group(kServer);
  command
      ->add_option("--override-generation-config", server.override_generation_config,
                   "JSON over it, for example {\"temperature\": 0.6}")
      ->group(kServer);
  command
      ->add_option("--max-stored-responses", server.max_stored_responses,
                   "Answers of /v1/responses that are kept, in memory; the oldest go first")
      ->group(kServer)
      ->capture_default_str();
  command
      ->add_option("--max-stored-response-bytes", server.max_stored_response_bytes, "All of them together (64M, ...)")
      ->group(kServer)
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->capture_default_str();
  command
      ->add_option("--batch-folder", server.batch_folder,
                   "Where /v1/files and /v1/batches keep what is theirs; without it they are not there")
      ->group(kServer);
  command
      ->add_option("--max-batch-folder-bytes", server.max_batch_folder_bytes, "All uploaded files together (4G, ...)")
      ->group(kServer)
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->capture_default_str();
  command->add_option("--batch-concurrency", server.batch_concurrency, "Lines of batches that are asked at once")
      ->group(kServer)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--return-token-ids", server.return_token_ids, "Return token ids unless a request says otherwise")
      ->group(kServer);
  command
      ->add_flag("--trust-request-chat-template", server.trust_request_chat_template,
                 "Render chat templates that requests bring")
      ->group(kServer);
  command->add_flag("--enable-log-requests", server.enable_log_requests, "A log line a request, without its text")
      ->group(kServer);
  command
      ->add_option("--shutdown-timeout", options->shutdown_timeout_seconds,
                   "Seconds that running answers have to finish after SIGTERM")
      ->group(kServer)
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option("--max-logprobs", options->engine.max_logprobs,
                   "Most logprobs that a request may ask for; -1: the whole vocabulary")
      ->group(kServer)
      ->capture_default_str();
  command->add_option("--seed", options->engine.seed, "Of requests that bring none")
      ->group(kServer)
      ->capture_default_str();
  add_engine_options(*command, options->engine);
  command->callback([options, &exit_code] { exit_code = exit_code_of(run(*options)); });
}

}  // namespace quire::cli
