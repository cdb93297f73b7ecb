// Ranks that share no memory, each a process on a host of its own or on one with others, as their executor and they
// themselves see them. The executor is network_executor.h; it talks to its own rank, a thread, as to the others.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/network_communicator.h"
#include "comm/network_group.h"
#include "runner/worker.h"
#include "runner/worker_messages.h"
#include "types/engine_config.h"

namespace quire::runner {

// What a rank is, for the others to compare.
struct NetworkSelf {
  std::string program;  // a name of its bytes
  std::string host;     // ranks of one host share its memory and cores
};
// Errors: not_found where the program's file cannot be read.
Result<NetworkSelf> this_process();

// Of a process with this command line: says who it is (WorkerHello), then does what run_worker() does. Errors: those of
// run_worker(); rank 0 has been told, and has ended the group.
Status run_network_worker(comm::NetworkGroup& group, const EngineConfig& config, const NetworkSelf& self,
                          const MakeBackend& make_backend);

// Errors: invalid_argument, in a sentence that names both ranks, where one runs another program, has another model,
// computes with other kernels or was started with other settings than rank 0.
Status check_same(std::span<const WorkerHello> hellos);

// What rank `rank` is told: rank 0's settings, its own paths, and its share of its host's cores.
EngineConfig order_of_rank(const EngineConfig& config, std::span<const WorkerHello> hellos, int rank);

// How many of the ranks are on the host of this one.
int32_t num_on_host_of(std::span<const WorkerHello> hellos, int rank);

}  // namespace quire::runner
