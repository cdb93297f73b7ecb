// A command whose model is computed by several processes that share no memory: those that mpirun or srun has started,
// those of several nodes that were told of each other, or those that a Ray cluster starts. All run the same command.
// The first one does what it says; the others compute their parts of the model for it until it is done.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "comm/network_group.h"
#include "types/engine_config.h"

namespace quire::cli {

// vLLM's flags of several nodes, each with as many of the ranks, in their order.
struct NodeOptions {
  int32_t nnodes = 1;
  int32_t node_rank = 0;
  std::string master_addr = "127.0.0.1";  // of the first node, where the others find it
  int32_t master_port = 29501;
  bool headless = false;
};
void add_node_options(CLI::App& app, NodeOptions& nodes);

// The ranks as one process has them. Its destructor ends the group, and waits for what this process has started.
class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual comm::NetworkGroup& group() = 0;
};

// nullptr where config and nodes ask for none: the model is computed in this process or by workers of it. Waits for all
// ranks to be there. Once in a process, and before threads that are to heed signals. Errors: invalid_argument where
// nobody has started this process as a rank of MPI, saying how that is done, for sizes that do not fit nodes, and for
// nodes beyond loopback without a secret; not_found without MPI or Ray; those of the ways to meet.
Result<std::unique_ptr<Ranks>> join_ranks(const EngineConfig& config, const NodeOptions& nodes);

inline comm::NetworkGroup* group_of(const std::unique_ptr<Ranks>& ranks) {
  return ranks == nullptr ? nullptr : &ranks->group();
}

// Whether this process is one of the others.
inline bool computes_for_another(const std::unique_ptr<Ranks>& ranks) {
  return ranks != nullptr && ranks->group().rank() != 0;
}

// What they do. Signals that ask a process to end are the first one's to heed: it ends the others.
Status run_as_rank(Ranks& ranks, const EngineConfig& config);

}  // namespace quire::cli
