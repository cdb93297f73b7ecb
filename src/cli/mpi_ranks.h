// A command whose model is computed by the processes that mpirun or srun has started: all of them run the same command.
// The first one does what it says; the others compute their parts of the model for it until it is done.
#pragma once

#include <memory>

#include "base/status.h"
#include "comm/network_group.h"
#include "types/engine_config.h"

namespace quire::cli {

// The ranks, where config's distributed_executor_backend is mpi; nullptr where it is not. Once in a process, and before
// threads that are to heed signals. Errors: invalid_argument where nobody has started this process as a rank, saying
// how that is done; not_found without MPI.
Result<std::unique_ptr<comm::NetworkGroup>> join_mpi(const EngineConfig& config);

// Whether this process is one of the others.
inline bool computes_for_another(const std::unique_ptr<comm::NetworkGroup>& ranks) {
  return ranks != nullptr && ranks->rank() != 0;
}

// What they do. Signals that ask a process to end are the first one's to heed: it ends the others.
Status run_as_rank(comm::NetworkGroup& ranks, const EngineConfig& config);

}  // namespace quire::cli
