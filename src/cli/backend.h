// The one place that names concrete backends.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/network_group.h"
#include "engine/engine.h"
#include "ops/backend.h"
#include "ops/cuda/product_kernels.h"
#include "runner/executor.h"
#include "types/engine_config.h"

namespace quire::cli {

// The backend that config asks for (threads, instruction set). products: of a card's, CudaBackendOptions. Errors:
// invalid_argument.
Result<std::unique_ptr<ops::Backend>> make_backend(const EngineConfig& config,
                                                   ops::ProductKernels products = ops::ProductKernels::kByRows);

// Of a rank of several hosts: these compute on a CPU, whatever cards they have.
Result<std::unique_ptr<ops::Backend>> make_rank_backend(const EngineConfig& config);

// Where workers come from.
struct WorkerSource {
  std::string program = {};             // what their processes run, make_process_launcher()
  comm::NetworkGroup* ranks = nullptr;  // join_ranks()'s, of which this process is the first; outlives the executor
};

// Backend, checkpoint and worker in this process, or workers in processes of their own.
Result<std::unique_ptr<runner::Executor>> make_executor(const EngineConfig& config, const WorkerSource& workers = {});

// As many as config.data_parallel_size says, each with its part of the cores.
Result<std::vector<std::unique_ptr<runner::Executor>>> make_executors(const EngineConfig& config,
                                                                      const WorkerSource& workers = {});

// An engine over such executors. The model's text comes first: a wrong file of it should not cost the time that
// weights take.
Result<std::unique_ptr<engine::Engine>> make_engine(const EngineConfig& config, Drive drive = Drive::kOwnThread,
                                                    const WorkerSource& workers = {});

}  // namespace quire::cli
