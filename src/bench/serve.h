// The load test: warm-up, several runs on fresh prompts, the median run.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"
#include "bench/dataset.h"
#include "bench/load.h"
#include "bench/serve_metrics.h"
#include "bench/speculation.h"

namespace quire::bench {

struct ServeOptions {
  ServerAddress server;
  std::string endpoint = "/v1/completions";  // a path that ends in /chat/completions is spoken to in messages
  std::string model;                         // as the server calls it
  std::vector<std::string> lora_modules;     // instead, names that requests are spread over; may hold the model's own
  std::string lora_assignment = "random";    // which has which: random, round-robin, zipf (the n-th 1/n as often)
  DatasetOptions dataset;
  double request_rate = std::numeric_limits<double>::infinity();  // requests a second
  double burstiness = 1;
  std::optional<int64_t> max_concurrency;
  uint64_t seed = 0;
  bool ignore_eos = false;
  double temperature = 0;
  int64_t num_warmups = 50;
  int64_t num_runs = 3;
  Goodput goodput;
  std::vector<double> percents = {50, 95, 99};
  bool token_ids = false;  // prompts as ids instead of texts
};

// Errors: invalid_argument, naming the flag.
Status validate(const ServeOptions& options);

// The JSON of one request.
std::string request_body(const ServeOptions& options, const Sample& sample, const std::string& model);

struct ServeRun {
  ServeMetrics metrics;
  std::vector<RequestOutcome> outcomes;
};
struct ServeResult {
  std::vector<ServeRun> runs;
  size_t median = 0;  // the run whose output throughput is the median
  int64_t failed_warmups = 0;
  SpeculationCounts speculation;  // of all runs, where the server tells (/metrics)
};

// Every run has prompts of its own (seed, seed + 1, ...), so that no run finds those of another in a prefix cache; the
// warm-up too. Errors: those of make_samples() and put_load(). Failed requests are none.
Result<ServeResult> run_serve(const ServeOptions& options, const PromptMaker& maker,
                              const std::function<void(const std::string&)>& report);

// The median run's figures under vLLM's keys, all runs under "runs".
boost::json::object serve_json(const ServeOptions& options, const ServeResult& result, const ShownMetrics& shown,
                               bool with_details);

}  // namespace quire::bench
