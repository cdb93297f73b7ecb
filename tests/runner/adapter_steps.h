// What tests ask of executors of several ranks whose requests have adapters.
#pragma once

#include <future>
#include <string>

#include "runner/adapter_store.h"
#include "tests/runner/worker_steps.h"

namespace quire::runner {

inline std::string workers_adapter_path(const std::string& name) {
  return std::string(QUIRE_TEST_DATA) + "/e2e/lora/" + name;
}

inline EngineConfig adapted_config(int32_t tensor, int32_t pipeline, const std::string& family = "llama") {
  EngineConfig config = workers_config(tensor, pipeline);
  config.model = tiny_path(family);
  config.enable_lora = true;
  config.max_loras = 2;
  config.enable_prompt_adapter = true;
  config.kv_cache_dtype = KvCacheDType::kFloat32;
  return config;
}

// By a name of its own, so that a test may load one twice.
inline Status load_shared_adapter(Executor& executor, const std::string& name, const std::string& path,
                                  bool replace = false) {
  std::promise<Status> loaded;
  executor.adapters()->load(name, path, replace, [&](AdapterStore::LeaseOr lease) {
    const Status status = lease.status();
    lease = unavailable("let go of");
    loaded.set_value(status);
  });
  return loaded.get_future().get();
}

inline AdapterStore::LeaseOr acquire_adapter(Executor& executor, const std::string& name) {
  std::promise<AdapterStore::LeaseOr> acquired;
  executor.adapters()->acquire(name, [&](AdapterStore::LeaseOr lease) { acquired.set_value(std::move(lease)); });
  return acquired.get_future().get();
}

}  // namespace quire::runner
