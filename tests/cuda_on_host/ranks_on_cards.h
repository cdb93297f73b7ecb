// Workers on emulated cards of their own: threads of this process in the place of processes.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "cli/backend.h"
#include "num_cards.h"
#include "runner/local_executor.h"
#include "runner/multiprocess_executor.h"
#include "tests/runner/thread_workers.h"
#include "tests/runner/tiny_model.h"

namespace quire::runner {

inline EngineConfig cards_config(int32_t tensor, int32_t pipeline) {
  EngineConfig config{.model = tiny_path("llama"), .skip_tokenizer_init = true};
  config.max_model_len = 128;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 32;
  config.num_gpu_blocks_override = 40;
  config.threads = 1;
  config.activation_dtype = ActivationDType::kFloat32;
  config.kv_cache_dtype = KvCacheDType::kFloat32;
  config.device = DeviceChoice::cuda();
  config.distributed_executor_backend = DistributedBackend::kMp;
  config.tensor_parallel_size = tensor;
  config.pipeline_parallel_size = pipeline;
  return config;
}

class WithCards : public testing::Test {
 protected:
  void SetUp() override { cuda_on_host::have_cards(4); }
  void TearDown() override { cuda_on_host::have_cards(1); }

  Result<std::unique_ptr<Executor>> start_workers(const EngineConfig& config) {
    EngineConfig planning = config;
    planning.device = DeviceChoice::cpu();
    const auto planner = cli::make_backend(planning).value();
    const auto make_backend = [this](const EngineConfig& of_rank) {
      auto backend = cli::make_backend(of_rank);
      const std::lock_guard lock(mutex_);
      if (backend.ok()) seen_cards_.insert((*backend)->description().substr(0, 6));
      return backend;
    };
    return make_multiprocess_executor(config, std::make_unique<ThreadLauncher>(last_segment_, make_backend), *planner);
  }
  // The same model on one card, in this process.
  static std::unique_ptr<Executor> start_one(EngineConfig config) {
    config.distributed_executor_backend = DistributedBackend::kAuto;
    config.tensor_parallel_size = config.pipeline_parallel_size = 1;
    config.enable_expert_parallel = false;
    return make_local_executor(config, cli::make_backend(config).value()).value();
  }

  std::set<std::string> seen_cards_;  // of all workers, by their backends' descriptions
  std::optional<WorkerSegment> last_segment_;

 private:
  std::mutex mutex_;
};

}  // namespace quire::runner
