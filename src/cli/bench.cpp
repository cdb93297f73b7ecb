// quire bench: how fast this engine is, in the terms of vLLM's benchmarks.
#include "cli/bench.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "bench/latency.h"
#include "bench/report.h"
#include "bench/throughput.h"
#include "cli/adapters.h"
#include "cli/backend.h"
#include "cli/commands.h"
#include "cli/hub_options.h"
#include "cli/options.h"
#include "cli/ranks.h"
#include "engine/engine.h"

namespace quire::cli {

void add_dataset_options(CLI::App& command, bench::DatasetOptions& dataset) {
  const auto option = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group("Dataset")->capture_default_str();
  };
  option("--dataset-name", dataset.name,
         "random: random tokens; sharegpt: chats out of a file; prefix_repetition: prompts that begin alike");
  option("--dataset-path", dataset.path, "The ShareGPT file (JSON); one that is cut short is read as far as it goes");
  option("--num-prompts", dataset.num_prompts, "Requests");
  option("--random-input-len,--input-len", dataset.random_input_len, "random: tokens of a prompt");
  option("--random-output-len,--output-len", dataset.random_output_len, "random: tokens of an answer");
  option("--random-range-ratio", dataset.random_range_ratio,
         "random: lengths vary by this share of theirs, up and down; [0, 1)");
  option("--random-prefix-len", dataset.random_prefix_len, "random: tokens before each prompt that all share");
  command
      .add_option("--sharegpt-output-len", dataset.sharegpt_output_len,
                  "sharegpt: tokens of an answer; otherwise as many as the recorded one has")
      ->group("Dataset");
  option("--prefix-repetition-prefix-len", dataset.prefix_repetition_prefix_len,
         "prefix_repetition: tokens of a shared prefix");
  option("--prefix-repetition-suffix-len", dataset.prefix_repetition_suffix_len,
         "prefix_repetition: tokens of each prompt's own");
  option("--prefix-repetition-num-prefixes", dataset.prefix_repetition_num_prefixes,
         "prefix_repetition: different prefixes");
  option("--prefix-repetition-output-len", dataset.prefix_repetition_output_len,
         "prefix_repetition: tokens of an answer");
}

void show_progress(const std::string& text) {
  if (isatty(STDERR_FILENO) != 0) {
    std::fprintf(stderr, "\r\x1b[K%s", text.c_str());
  } else {
    std::fprintf(stderr, "%s\n", text.c_str());
  }
}

void end_progress() {
  if (isatty(STDERR_FILENO) != 0) std::fputs("\r\x1b[K", stderr);
}

namespace {

struct EngineBenchOptions {
  EngineConfig engine;
  std::vector<std::string> lora_modules;  // as they were given
  NodeOptions nodes;
  HubFlags hub;
  std::string output_json;
  bool given_max_num_seqs = false;
};

struct LatencyCommand : EngineBenchOptions {
  bench::LatencyOptions bench;
  std::string cases;
};

struct ThroughputCommand : EngineBenchOptions {
  bench::ThroughputOptions bench;
};

// Measures with an engine. In a process that computes for another's, until that one has measured.
template <typename Measure>
Status with_engine(EngineBenchOptions& options, const Measure& measure) {
  QUIRE_ASSIGN_OR_RETURN(const auto ranks, join_ranks(options.engine, options.nodes));
  QUIRE_RETURN_IF_ERROR(resolve_model(options.engine, options.hub));
  if (computes_for_another(ranks)) return run_as_rank(*ranks, options.engine);
  QUIRE_ASSIGN_OR_RETURN(const auto engine, make_engine(options.engine, Drive::kOwnThread, {.ranks = group_of(ranks)}));
  return measure(*engine);
}

Status finish(const EngineBenchOptions& options, const engine::Engine& engine, boost::json::object results,
              const std::string& table) {
  end_progress();
  std::printf("%s: %s on %s\n%s", shown_model(options.engine).c_str(), engine.model().dtype.c_str(),
              engine.device_description().c_str(), table.c_str());
  if (options.output_json.empty()) return {};
  results["dtype"] = engine.model().dtype;
  results["device"] = engine.device_description();
  return bench::write_json(options.output_json, results);
}

// Returns the names.
Result<std::vector<std::string>> load_adapters(engine::Engine& engine, const std::vector<std::string>& given,
                                               const EngineConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(const auto adapters, read_lora_modules(given, config));
  QUIRE_RETURN_IF_ERROR(load_adapters(engine, adapters));
  std::vector<std::string> names;
  for (const LoraModule& adapter : adapters) names.push_back(adapter.name);
  return names;
}

// Each without adapters and, if there are any, with them.
std::vector<bench::LatencyOptions> with_adapters(const std::vector<bench::LatencyOptions>& cases,
                                                 const std::vector<std::string>& adapters) {
  std::vector<bench::LatencyOptions> all;
  for (const bench::LatencyOptions& one : cases) {
    all.push_back(one);
    if (adapters.empty()) continue;
    all.push_back(one);
    all.back().adapters = adapters;
  }
  return all;
}

// Written anew after each, so that what ends in the middle has told of those before.
Status run_cases(LatencyCommand& options) {
  QUIRE_ASSIGN_OR_RETURN(const auto cases, bench::latency_cases(options.bench, options.cases));
  int64_t largest = 1;
  for (const bench::LatencyOptions& one : cases) largest = std::max(largest, one.batch_size);
  if (!options.given_max_num_seqs) options.engine.max_num_seqs = static_cast<int32_t>(largest);
  return with_engine(options, [&](engine::Engine& engine) -> Status {
    QUIRE_ASSIGN_OR_RETURN(const auto adapters, load_adapters(engine, options.lora_modules, options.engine));
    boost::json::object results;
    for (const bench::LatencyOptions& one : with_adapters(cases, adapters)) {
      auto result = bench::run_latency(engine, one, show_progress);
      if (!result.ok()) return std::move(result).status().with_prefix(bench::case_name(one) + ": ");
      results[bench::case_name(one)] = bench::latency_json(one, *result, shown_model(options.engine));
      QUIRE_RETURN_IF_ERROR(finish(options, engine, {{"cases", results}},
                                   bench::case_name(one) + "\n" + bench::latency_table(one, *result)));
    }
    return {};
  });
}

Status run(LatencyCommand& options) {
  if (!options.cases.empty()) return run_cases(options);
  QUIRE_RETURN_IF_ERROR(bench::validate(options.bench));
  if (!options.given_max_num_seqs) options.engine.max_num_seqs = static_cast<int32_t>(options.bench.batch_size);
  return with_engine(options, [&](engine::Engine& engine) -> Status {
    QUIRE_ASSIGN_OR_RETURN(options.bench.adapters, load_adapters(engine, options.lora_modules, options.engine));
    QUIRE_ASSIGN_OR_RETURN(const bench::LatencyResult result, bench::run_latency(engine, options.bench, show_progress));
    return finish(options, engine, bench::latency_json(options.bench, result, shown_model(options.engine)),
                  bench::latency_table(options.bench, result));
  });
}

Status run(ThroughputCommand& options) {
  QUIRE_RETURN_IF_ERROR(bench::validate(options.bench.dataset));
  // All requests are there at once: they must be let in.
  options.engine.max_num_queued_reqs =
      std::max(options.engine.max_num_queued_reqs, static_cast<int32_t>(options.bench.dataset.num_prompts) + 1);
  return with_engine(options, [&](engine::Engine& engine) -> Status {
    QUIRE_ASSIGN_OR_RETURN(options.bench.adapters, load_adapters(engine, options.lora_modules, options.engine));
    QUIRE_ASSIGN_OR_RETURN(const bench::ThroughputResult result,
                           bench::run_throughput(engine, options.bench, show_progress));
    return finish(options, engine, bench::throughput_json(result, shown_model(options.engine)),
                  bench::throughput_table(result));
  });
}

}  // namespace

void add_bench_latency(CLI::App& bench, int& exit_code) {
  auto options = std::make_shared<LatencyCommand>();
  options->engine.enable_prefix_caching = false;
  CLI::App* command = bench.add_subcommand(
      "latency", "One batch of random prompts at a time: latency, prefill and decode speed, cold start");
  add_model_argument(*command, options->engine);
  add_hub_options(*command, options->hub);
  const auto option = [&](const char* name, auto& value, const char* help) {
    return command->add_option(name, value, help)->group("Benchmark")->capture_default_str();
  };
  option("--input-len", options->bench.input_len, "Tokens of a prompt");
  option("--output-len", options->bench.output_len, "Tokens of an answer");
  option("--batch-size", options->bench.batch_size, "Prompts at once");
  option("--cases", options->cases,
         "Several in one engine instead, BATCHxINPUTxOUTPUT or BATCHxINPUTxOUTPUTxITERATIONS: 1x1024x64,32x1024x64x2");
  add_lora_modules_option(*command, options->lora_modules)
      ->group("Benchmark")
      ->description("Adapters that a batch's prompts take in turns, NAME=PATH; --cases are measured without them too");
  option("--num-iters-warmup", options->bench.num_iters_warmup, "Batches before, not counted");
  option("--num-iters", options->bench.num_iters, "Batches measured");
  option("--seed", options->bench.seed, "Of the random prompts");
  option("--temperature", options->bench.temperature, "0: always the likeliest token");
  command->add_flag("--disable-detokenize", options->bench.disable_detokenize, "Make no text of the tokens")
      ->group("Benchmark");
  option("--output-json", options->output_json, "Write the results to this file");
  add_engine_options(*command, options->engine);
  add_node_options(*command, options->nodes);
  command->callback([options, command, &exit_code] {
    options->given_max_num_seqs = command->count("--max-num-seqs") > 0;
    exit_code = exit_code_of(run(*options));
  });
}

void add_bench_throughput(CLI::App& bench, int& exit_code) {
  auto options = std::make_shared<ThroughputCommand>();
  CLI::App* command =
      bench.add_subcommand("throughput", "Many requests at once, without a server: tokens and requests per second");
  add_model_argument(*command, options->engine);
  add_hub_options(*command, options->hub);
  const auto option = [&](const char* name, auto& value, const char* help) {
    return command->add_option(name, value, help)->group("Benchmark")->capture_default_str();
  };
  option("--num-warmups", options->bench.num_warmups, "Requests before, not counted");
  option("--seed", options->bench.seed, "Of the prompts");
  option("--temperature", options->bench.temperature, "0: always the likeliest token");
  command->add_flag("--disable-detokenize", options->bench.disable_detokenize, "Make no text of the tokens")
      ->group("Benchmark");
  add_lora_modules_option(*command, options->lora_modules)
      ->group("Benchmark")
      ->description("Adapters that requests take in turns, NAME=PATH");
  option("--output-json", options->output_json, "Write the results to this file");
  add_dataset_options(*command, options->bench.dataset);
  add_engine_options(*command, options->engine);
  add_node_options(*command, options->nodes);
  command->callback([options, &exit_code] { exit_code = exit_code_of(run(*options)); });
}

void add_bench_command(CLI::App& program, int& exit_code) {
  CLI::App* bench = program.add_subcommand("bench", "Measure: this engine, any OpenAI server, the kernels");
  bench->require_subcommand(1);
  bench->footer("`quire bench BENCHMARK --help` lists its flags; names and JSON keys are those of vLLM's benchmarks.");
  add_bench_latency(*bench, exit_code);
  add_bench_throughput(*bench, exit_code);
  add_bench_perplexity(*bench, exit_code);
  add_bench_serve(*bench, exit_code);
  add_bench_kernels(*bench, exit_code);
}

}  // namespace quire::cli
