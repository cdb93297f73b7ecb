// One batch of random prompts at a time through an engine: how long it takes, how fast prompts are read and answers
// written.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"
#include "bench/decode_steps.h"
#include "bench/speculation.h"
#include "engine/engine.h"

namespace quire::bench {

struct LatencyOptions {
  int64_t input_len = 32;
  int64_t output_len = 128;
  int64_t batch_size = 8;
  int64_t num_iters_warmup = 10;
  int64_t num_iters = 30;
  uint64_t seed = 0;
  float temperature = 0;  // 0: greedy
  float repetition_penalty = 1;
  bool disable_detokenize = false;
  std::vector<std::string> adapters;  // names that the engine knows, which a batch's prompts take in turns; none: none
};

// Errors: invalid_argument, naming the flag.
Status validate(const LatencyOptions& options);

// Several in one engine, so that a model is loaded once: "32x1024x64,1x2048x1x5" is a batch of 32 prompts of 1,024
// tokens with 64 of an answer, as often as `common` says, and one prompt of 2,048 five times. Errors: invalid_argument.
Result<std::vector<LatencyOptions>> latency_cases(const LatencyOptions& common, const std::string& cases);
std::string case_name(const LatencyOptions& options);  // "32x1024x64", "32x1024x64_adapted"

// What one batch took, in seconds from its submission.
struct BatchTimes {
  double first_token = 0;       // of any of its sequences
  double last_first_token = 0;  // until every sequence has one: the prefill
  double end = 0;
  int64_t output_tokens = 0;
  int64_t tokens_at_last_first_token = 0;  // given out until then
  int64_t cached_tokens = 0;               // of the prompts, that were not computed
};

// Prompt tokens over the time to the last sequence's first token.
double prefill_tokens_per_second(const BatchTimes& times, int64_t prompt_tokens);
// Tokens given out after that over the time after that; nullopt when there were none.
std::optional<double> decode_tokens_per_second(const BatchTimes& times);

struct LatencyResult {
  std::vector<BatchTimes> iterations;
  double start_to_first_token_seconds = 0;  // of the process; the first batch
  SpeculationCounts speculation;            // of the iterations
  DecodeSteps decode_steps;                 // of whole batches, as many as the engine still knows of
};

// Runs warm-up and iterations. `report` is told of each finished batch. Errors: those of Engine::submit(); a request
// that fails.
Result<LatencyResult> run_latency(engine::Engine& engine, const LatencyOptions& options,
                                  const std::function<void(const std::string&)>& report);

// vLLM's keys, and quire's own beside them.
boost::json::object latency_json(const LatencyOptions& options, const LatencyResult& result, const std::string& model);
std::string latency_table(const LatencyOptions& options, const LatencyResult& result);

}  // namespace quire::bench
