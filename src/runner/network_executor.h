// The executor of ranks on several hosts, joined by MPI or TCP (docs/distributed.md). Plans and results travel as bytes
// (plan_codec.h) by messages; every rank is sent every plan, and the one that samples answers. This process is rank 0,
// whose part a thread of it computes.
//
// A thread looks after the others: where one has said that it cannot go on, or gives no sign of life, the group is
// ended, status() says which and why, and collect() gives that. Nobody starts ranks again: there is no recover().
#pragma once

#include <memory>

#include "ops/backend.h"
#include "runner/executor.h"
#include "runner/network_workers.h"
#include "types/engine_config.h"

namespace quire::runner {

// group: of as many ranks as config says, of which this is the first; the others do run_network_worker(). It must
// outlive the executor, which ends it. planner: as for make_multiprocess_executor(). Prints nothing. Errors:
// invalid_argument where the ranks are not as many, or not the same (check_same()); those of the ranks.
Result<std::unique_ptr<Executor>> make_network_executor(const EngineConfig& config, comm::NetworkGroup& group,
                                                        const NetworkSelf& self, MakeBackend make_backend,
                                                        ops::Backend& planner);

}  // namespace quire::runner
