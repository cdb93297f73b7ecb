// A set of requests given to an engine at once: how many tokens a second it gets through.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"
#include "bench/dataset.h"
#include "bench/speculation.h"
#include "engine/engine.h"

namespace quire::bench {

struct ThroughputOptions {
  DatasetOptions dataset;
  int64_t num_warmups = 0;  // requests before, not counted
  uint64_t seed = 0;
  float temperature = 0;  // 0: greedy
  bool disable_detokenize = false;
  std::vector<std::string> adapters;  // names that the engine knows, which requests take in turns; none: none
};

struct ThroughputResult {
  double elapsed_time = 0;  // seconds from the first submission to the last token
  int64_t num_requests = 0;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompts, found in the prefix cache
  SpeculationCounts speculation;
};

// Errors: those of make_samples() and Engine::submit(); a request that fails. `report` is told how far it is.
Result<ThroughputResult> run_throughput(engine::Engine& engine, const ThroughputOptions& options,
                                        const std::function<void(const std::string&)>& report);

// vLLM's keys, and quire's own beside them.
boost::json::object throughput_json(const ThroughputResult& result, const std::string& model);
std::string throughput_table(const ThroughputResult& result);

}  // namespace quire::bench
