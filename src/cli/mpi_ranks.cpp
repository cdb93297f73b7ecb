#include "cli/mpi_ranks.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "cli/backend.h"
#include "cli/options.h"
#include "comm/transport.h"
#include "runner/network_workers.h"

namespace quire::cli {
namespace {

constexpr const char* kLibrary = "libquire_mpi.so";

// One of these is set by whatever starts ranks: Open MPI's mpirun, Slurm's srun with PMIx or PMI-2.
bool was_started_as_a_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    if (!environment(name).empty()) return true;
  }
  return false;
}

// MPI's own threads take none of the process's signals.
class SignalsHeldBack {
 public:
  SignalsHeldBack() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsHeldBack() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeldBack(const SignalsHeldBack&) = delete;
  SignalsHeldBack& operator=(const SignalsHeldBack&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

Result<std::unique_ptr<comm::NetworkGroup>> join_mpi(const EngineConfig& config) {
  if (config.distributed_executor_backend != DistributedBackend::kMpi) return std::unique_ptr<comm::NetworkGroup>();
  QUIRE_RETURN_IF_ERROR(validate(config));
  if (!was_started_as_a_rank()) {
    const int ranks = std::max(config.num_ranks(), 2);
    return invalid_argument(
        "distributed_executor_backend \"mpi\": nobody has started this process as one of several. Start it as `mpirun "
        "-np {} quire serve MODEL --distributed-executor-backend mpi --tensor-parallel-size {}`, or with srun "
        "--mpi=pmix",
        ranks, ranks);
  }
  const SignalsHeldBack held;
  QUIRE_ASSIGN_OR_RETURN(auto transport, comm::open_mpi(kLibrary));
  return std::make_unique<comm::NetworkGroup>(std::move(transport));
}

Status run_as_rank(comm::NetworkGroup& ranks, const EngineConfig& config) {
  for (const int asks : {SIGTERM, SIGINT, SIGUSR1}) signal(asks, SIG_IGN);
  // What all of them would say the first says.
  if (log_level() == "debug" || log_level() == "info") QUIRE_CHECK(set_log_level("warning"));
  QUIRE_ASSIGN_OR_RETURN(const runner::NetworkSelf self, runner::this_process());
  return runner::run_network_worker(ranks, config, self, [](const EngineConfig& own) { return make_backend(own); });
}

}  // namespace quire::cli
