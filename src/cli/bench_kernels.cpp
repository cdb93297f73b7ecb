// quire bench kernels: each kernel beside what the machine, or the card, can do.
#include <cstdio>

#include "base/thread_pool.h"
#include "bench/device_kernels.h"
#include "bench/device_limits.h"
#include "bench/kernels.h"
#include "bench/report.h"
#include "cli/backend.h"
#include "cli/bench.h"
#include "cli/choice_option.h"
#include "cli/options.h"

namespace quire::cli {
namespace {

struct KernelsCommand {
  EngineConfig engine;
  bench::KernelOptions bench;
  std::string output_json;
  bool limits_only = false;
};

Status write(const KernelsCommand& options, const ops::Backend& backend, boost::json::object results) {
  if (options.output_json.empty()) return {};
  results["device"] = backend.description();
  return bench::write_json(options.output_json, results);
}

// Products by the kernel of few rows, by decoded tiles and by cuBLASLt, whichever the rows are: what tells from how
// many on which is the fastest.
Status run_on_card(const KernelsCommand& options) {
  QUIRE_ASSIGN_OR_RETURN(auto usual, make_backend(options.engine));
  QUIRE_ASSIGN_OR_RETURN(const bench::DeviceLimits limits, bench::measure_device(*usual));
  std::printf("%s\n%s", usual->description().c_str(), bench::device_limits_table(limits).c_str());
  boost::json::object results{{"machine", bench::device_limits_json(limits)}};
  if (!options.limits_only) {
    QUIRE_ASSIGN_OR_RETURN(auto own, make_backend(options.engine, ops::ProductKernels::kFewRows));
    QUIRE_ASSIGN_OR_RETURN(auto tiles, make_backend(options.engine, ops::ProductKernels::kDecodedTiles));
    QUIRE_ASSIGN_OR_RETURN(auto library, make_backend(options.engine, ops::ProductKernels::kLibrary));
    QUIRE_ASSIGN_OR_RETURN(
        const auto times,
        bench::measure_device_kernels({{"own", own.get()}, {"tiles", tiles.get()}, {"cuBLASLt", library.get()}},
                                      options.bench, {}, show_progress));
    end_progress();
    if (times.empty()) return not_found("--filter \"{}\" leaves no kernel", options.bench.filter);
    std::printf("\n%s", bench::device_kernels_table(limits, times).c_str());
    results["kernels"] = bench::device_kernels_json(limits, times);
  }
  return write(options, *usual, std::move(results));
}

Status run(const KernelsCommand& options) {
  if (options.engine.device.kind != DeviceChoice::Kind::kCpu) return run_on_card(options);
  bench::MachineLimits limits;
  show_progress("the machine");
  QUIRE_ASSIGN_OR_RETURN(auto backend, make_backend(options.engine));
  {
    ThreadPool pool({.num_threads = options.engine.threads});
    QUIRE_ASSIGN_OR_RETURN(limits, bench::measure_machine(pool, backend->allocator()));
  }
  std::vector<bench::KernelTime> times;
  if (!options.limits_only) {
    QUIRE_ASSIGN_OR_RETURN(times, bench::measure_kernels(*backend, options.bench, show_progress));
  }
  end_progress();
  if (times.empty() && !options.limits_only) return not_found("--filter \"{}\" leaves no kernel", options.bench.filter);
  std::printf("%s\n%s", backend->description().c_str(), bench::kernels_table(limits, times).c_str());
  return write(options, *backend, bench::kernels_json(limits, times));
}

}  // namespace

void add_bench_kernels(CLI::App& bench, int& exit_code) {
  auto options = std::make_shared<KernelsCommand>();
  options->engine.device = DeviceChoice::cpu();
  CLI::App* command =
      bench.add_subcommand("kernels", "Each kernel's time, and its share of the machine's bandwidth and multiply-adds");
  add_choice(*command, "--device", options->engine.device,
             "cpu, cuda or cuda:N; of a card also products by both ways that they have")
      ->capture_default_str();
  add_choice(*command, "--attention-backend", options->engine.attention_backend,
             "Of a card: whose kernels of attention: auto, native (quire's own), flashinfer or fa3")
      ->capture_default_str();
  command->add_flag("--limits-only", options->limits_only, "Measure what the machine can do, and no kernel");
  add_choice(*command, "--isa", options->engine.isa, "Instruction set of the kernels; auto: the best there is")
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
