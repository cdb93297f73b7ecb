// quire serve: the OpenAI-compatible server.
#include <pthread.h>

#include <chrono>
#include <csignal>
#include <ctime>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/log_format.h"
#include "cli/log_stats.h"
#include "cli/options.h"
#include "cli/ranks.h"
#include "cli/serve_options.h"
#include "cli/served_models.h"
#include "cli/service_manager.h"
#include "server/server.h"

namespace quire::cli {
namespace {

// Blocks SIGINT and SIGTERM in this thread and all that it will start, so that one place takes them; and SIGUSR1 of a
// process that mpirun may have started: of what asks for an orderly end, that is what mpirun hands on.
class SignalWait {
 public:
  explicit SignalWait(bool under_mpi) {
    sigemptyset(&signals_);
    if (under_mpi) sigaddset(&signals_, SIGUSR1);
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

class StatsLog {
 public:
  StatsLog(bool on, const Metrics& metrics) : on_(on), metrics_(metrics) {
    if (on_) stats_.line(metrics_.text(), 1);
  }
  void tick() {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - told_).count();
    if (!on_ || seconds < kSeconds) return;
    told_ = std::chrono::steady_clock::now();
    if (const auto line = stats_.line(metrics_.text(), seconds)) log_info("{}", *line);
  }

 private:
  static constexpr double kSeconds = 10;  // as vLLM
  const bool on_;
  const Metrics& metrics_;
  LogStats stats_;
  std::chrono::steady_clock::time_point told_ = std::chrono::steady_clock::now();
};

std::string address(const ServeOptions& options, const server::Server& server) {
  const char* scheme = options.server.tls.on() ? "https" : "http";
  if (!options.server.uds.empty()) return fmt::format("{} on {}", scheme, options.server.uds);
  return fmt::format("{}://{}:{}/v1{}", scheme, options.server.host, server.port(),
                     options.server.enable_page ? ", and / in a browser" : "");
}

// One of several processes of a model: what is served is the first one's to know.
Status compute_for_the_server(Ranks& ranks, ServeOptions& options) {
  QUIRE_RETURN_IF_ERROR(resolve_models(options));
  EngineConfig config = options.engine;
  config.model = options.models.front().path;
  return run_as_rank(ranks, config);
}

Status run(ServeOptions& options) {
  if (options.log_format == "json") log_as_json();
  QUIRE_CHECK(set_log_level(options.log_level));
  QUIRE_ASSIGN_OR_RETURN(const auto ranks, join_ranks(options.engine, options.nodes));
  if (computes_for_another(ranks)) return compute_for_the_server(*ranks, options);
  QUIRE_RETURN_IF_ERROR(complete_serve_options(options));
  QUIRE_RETURN_IF_ERROR(resolve_models(options));  // before signals are kept back: Ctrl-C ends a download
  const SignalWait signals(ranks != nullptr);
  ServiceManager service_manager;
  const auto start = std::chrono::steady_clock::now();
  options.server.version = QUIRE_VERSION;
  for (const std::string& note : options.notes) log_info("{}", note);
  Metrics metrics;
  std::shared_ptr<server::KvTransfer> kv_transfer;
  if (options.engine.kv_transfer) {
    QUIRE_ASSIGN_OR_RETURN(kv_transfer, server::KvTransfer::start(options.kv_transfer, metrics));
  }
  QUIRE_ASSIGN_OR_RETURN(auto models, model_sources(options, metrics, group_of(ranks)));
  server::ServerConfig config = options.server;  // of the models, too
  config.kv_transfer = std::move(kv_transfer);
  QUIRE_ASSIGN_OR_RETURN(auto server, server::Server::start(config, std::move(models), metrics));
  log_info("ready in {:.2f} s: {}", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
           address(options, *server));
  if (server->admin_port() != 0) log_info("operators: http://{}:{}", options.server.admin.host, server->admin_port());
  service_manager.ready();
  StatsLog stats(options.log_stats, metrics);
  while (server->healthy()) {
    const int signal = signals.wait(std::chrono::milliseconds(500));
    if (signal == 0) {
      stats.tick();
      continue;
    }
    log_info("signal {}: no new requests; running answers are finished (again: stop at once)", signal);
    signals.release();
    service_manager.stopping();
    server->drain_and_stop();
    log_info("stopped");
    return {};
  }
  service_manager.stopping();
  server->drain_and_stop();
  return internal_error("the engine has failed; see the log above");
}

}  // namespace

void add_serve_command(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command = program.add_subcommand("serve", "OpenAI-compatible HTTP server");
  add_models_argument(*command, *options);
  add_serve_options(*command, *options);
  command->callback([options, &exit_code] { exit_code = exit_code_of(run(*options)); });
}

}  // namespace quire::cli
