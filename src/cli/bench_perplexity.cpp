// quire bench perplexity: how well a model predicts a text.
#include <cstdio>

#include "bench/perplexity.h"
#include "bench/report.h"
#include "cli/backend.h"
#include "cli/bench.h"
#include "cli/hub_options.h"
#include "cli/options.h"
#include "cli/ranks.h"
#include "engine/engine.h"

namespace quire::cli {
namespace {

struct PerplexityCommand {
  EngineConfig engine;
  NodeOptions nodes;
  HubFlags hub;
  bench::PerplexityOptions bench;
  std::string output_json;
};

Status run(PerplexityCommand& options) {
  QUIRE_ASSIGN_OR_RETURN(const auto ranks, join_ranks(options.engine, options.nodes));
  QUIRE_RETURN_IF_ERROR(resolve_model(options.engine, options.hub));
  // Text that is beyond the context is not read at all.
  if (options.engine.max_model_len == 0) options.engine.max_model_len = options.bench.window + 1;
  if (computes_for_another(ranks)) return run_as_rank(*ranks, options.engine);
  QUIRE_ASSIGN_OR_RETURN(auto engine, make_engine(options.engine, Drive::kOwnThread, {.ranks = group_of(ranks)}));
  if (engine->tokenizer() == nullptr) return invalid_argument("perplexity needs the model's tokenizer");
  const std::string about =
      fmt::format("{}: {} on {}", shown_model(options.engine), engine->model().dtype, engine->device_description());
  QUIRE_ASSIGN_OR_RETURN(const bench::TextWindows text, bench::cut_text(options.bench, *engine->tokenizer()));
  LLM llm(std::move(engine));
  QUIRE_ASSIGN_OR_RETURN(const bench::PerplexityResult result, bench::run_perplexity(llm, text, show_progress));
  end_progress();
  std::printf("%s\n%s", about.c_str(), bench::perplexity_table(result).c_str());
  if (options.output_json.empty()) return {};
  return bench::write_json(options.output_json,
                           bench::perplexity_json(options.bench, result, shown_model(options.engine)));
}

}  // namespace

void add_bench_perplexity(CLI::App& bench, int& exit_code) {
  auto options = std::make_shared<PerplexityCommand>();
  options->engine.enable_prefix_caching = false;
  CLI::App* command = bench.add_subcommand("perplexity", "How well a model predicts a text, by windows of it");
  add_model_argument(*command, options->engine);
  add_hub_options(*command, options->hub);
  const auto option = [&](const char* name, auto& value, const char* help) {
    return command->add_option(name, value, help)->group("Benchmark")->capture_default_str();
  };
  option("--text", options->bench.text_path, "A file of plain text")->required();
  option("--window", options->bench.window, "Tokens read together; those of the second half are scored");
  option("--num-windows", options->bench.most_windows, "Of the text's beginning only so many; 0: all");
  option("--output-json", options->output_json, "Write the results to this file");
  add_engine_options(*command, options->engine);
  add_node_options(*command, options->nodes);
  command->callback([options, &exit_code] { exit_code = exit_code_of(run(*options)); });
}

}  // namespace quire::cli
