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
};
std::string encode(const WorkerReport& report);
Result<WorkerReport> decode_report(std::string_view message);

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
