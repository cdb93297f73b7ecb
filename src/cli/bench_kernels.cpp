// quire bench kernels: each kernel beside what the machine can do.
#include <cstdio>

#include "base/thread_pool.h"
#include "bench/kernels.h"
#include "bench/report.h"
#include "cli/backend.h"
#include "cli/bench.h"
#include "cli/options.h"

namespace quire::cli {
namespace {

struct KernelsCommand {
  EngineConfig engine;
  bench::KernelOptions bench;
  std::string output_json;
};

Status run(const KernelsCommand& options) {
  bench::MachineLimits limits;
  show_progress("the machine");
  EngineConfig engine = options.engine;
  engine.device = "cpu";  // what is measured lies in the host's memory
  QUIRE_ASSIGN_OR_RETURN(auto backend, make_backend(engine));
  {
    ThreadPool pool({.num_threads = options.engine.threads});
    QUIRE_ASSIGN_OR_RETURN(limits, bench::measure_machine(pool, backend->allocator()));
  }
  QUIRE_ASSIGN_OR_RETURN(const auto times, bench::measure_kernels(*backend, options.bench, show_progress));
  end_progress();
  if (times.empty()) return not_found("--filter \"{}\" leaves no kernel", options.bench.filter);
  std::printf("%s\n%s", backend->description().c_str(), bench::kernels_table(limits, times).c_str());
  if (options.output_json.empty()) return {};
  boost::json::object results{{"device", backend->description()}};
  for (auto& [key, value] : bench::kernels_json(limits, times)) results[key] = std::move(value);
  return bench::write_json(options.output_json, results);
}

}  // namespace

void add_bench_kernels(CLI::App& bench, int& exit_code) {
  auto options = std::make_shared<KernelsCommand>();
  CLI::App* command =
      bench.add_subcommand("kernels", "Each kernel's time, and its share of the machine's bandwidth and multiply-adds");
  command->add_option("--isa", options->engine.isa, "Instruction set of the kernels; auto: the best there is")
      ->capture_default_str();
  command->add_option("--threads", options->engine.threads, "Compute threads; 0: one a core")->capture_default_str();
  command->add_option("--filter", options->bench.filter, "Regular expression found in a kernel's name (linear Q4_1)");
  command->add_option("--seconds", options->bench.seconds, "Repeat each kernel for so long")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--output-json", options->output_json, "Write the results to this file");
  command->callback([options, &exit_code] { exit_code = exit_code_of(run(*options)); });
}

}  // namespace quire::cli
