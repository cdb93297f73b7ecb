// quire worker: a process of a model that is computed in several (cli/worker_processes.h). --help does not list it.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "base/log.h"
#include "cli/backend.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/worker_processes.h"
#include "runner/worker.h"

namespace quire::cli {
namespace {

struct WorkerOptions {
  runner::WorkerSegment::Shape shape;
  int rank = 0;
  int server = 0;
  std::string log_level = "info";
};

Status run_as_worker(const WorkerOptions& options) {
  // It lives as long as the server: where that is killed, so is this, even while it is stopped.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != options.server) {
    return invalid_argument("a worker is started by the server whose worker it is, not by hand");
  }
  signal(SIGTERM, SIG_IGN);  // sent to all of a service; the server finishes its answers first
  signal(SIGINT, SIG_IGN);
  QUIRE_CHECK(set_log_level(options.log_level));
  const runner::WorkerSegment::Shape& shape = options.shape;
  const auto is_size = [](int size) { return size >= 1 && size <= comm::kMostRanks; };
  const bool is_shape = is_size(shape.num_stages) && is_size(shape.stage_size) && is_size(shape.num_ranks());
  if (!is_shape || options.rank < 0 || options.rank >= shape.num_ranks()) {
    return invalid_argument("rank {} of {} stages of {} ranks", options.rank, shape.num_stages, shape.stage_size);
  }
  const int64_t bytes = runner::WorkerSegment::bytes(shape);
  QUIRE_ASSIGN_OR_RETURN(const comm::SharedSegment memory, comm::SharedSegment::open(kSegmentDescriptor, bytes));
  return runner::run_worker({memory.data(), shape}, options.rank,
                            [](const EngineConfig& config) { return make_backend(config); });
}

}  // namespace

void add_worker_command(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<WorkerOptions>();
  CLI::App* command = program.add_subcommand("worker", "A process of a model that is computed in several")->group("");
  command->add_option("--stages", options->shape.num_stages)->required();
  command->add_option("--stage-size", options->shape.stage_size)->required();
  command->add_option("--rank", options->rank)->required();
  command->add_option("--server", options->server)->required();
  command->add_option("--log-level", options->log_level);
  command->callback([options, &exit_code] { exit_code = exit_code_of(run_as_worker(*options)); });
}

}  // namespace quire::cli
