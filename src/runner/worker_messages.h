// What an engine's process and its workers say to each other before the first plan, in the form of plan_codec.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "types/engine_config.h"

namespace quire::runner {

// Of EngineConfig all that decides what a worker loads and computes. What the engine alone looks at does not travel.
std::string encode_order(const EngineConfig& config);
Result<EngineConfig> decode_order(std::string_view message);

// A worker is ready, or cannot be.
struct WorkerReport {
  Status status;
  std::string description;  // of its backend
  std::string quantization;
  int64_t num_blocks = 0;
  int64_t num_swap_blocks = 0;
  double seconds_per_swapped_block = 0;
  // As MemoryPlan has them: what suits the worker's device.
  int64_t max_num_batched_tokens = 0;
  int64_t weight_bytes = 0;
  int64_t workspace_bytes = 0;
};
std::string encode(const WorkerReport& report);
Result<WorkerReport> decode_report(std::string_view message);

// What a rank is to do with an adapter, beside the steps (adapter_ranks.h).
struct AdapterOrder {
  // Read it and keep it; give it a place and let steps find it, which may be asked again where there is no room yet
  // (the report's status is resource_exhausted, which nothing else is); let go of it, which is not reported of.
  enum class Kind : uint8_t { kRead, kUse, kDrop };
  Kind kind = Kind::kRead;
  uint64_t handle = 0;    // of this reading
  int32_t number = 0;     // by which plans name it
  std::string path;       // as the engine's process sees it
  uint64_t revision = 0;  // that the files must have
};
std::string encode(const AdapterOrder& order);
Result<AdapterOrder> decode_adapter_order(std::string_view message);

struct AdapterReport {
  uint64_t handle = 0;
  Status status;
  int64_t bytes = 0;       // that it takes of this rank
  int64_t most_bytes = 0;  // that all may take of it
  int32_t rank = 0;        // of its largest factor
};
std::string encode(const AdapterReport& report);
Result<AdapterReport> decode_adapter_report(std::string_view message);

// What a rank that nobody of ours has started says of itself before it is told anything. Whatever must be the same in
// all of them is there to be compared; `settings` are an order (encode_order()) without what is each rank's own.
struct WorkerHello {
  std::string program;  // a name of its bytes
  std::string host;
  std::string kernels;  // of its backend, without how many threads
  std::string model;    // where the model lies on its host, and which one it is
  std::string fingerprint;
  std::string tokenizer;
  std::string settings;
  int32_t threads = 0;
  std::vector<int32_t> cores;  // that it may use
};
std::string encode(const WorkerHello& hello);
Result<WorkerHello> decode_hello(std::string_view message);

}  // namespace quire::runner
