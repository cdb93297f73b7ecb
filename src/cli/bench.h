// The subcommands of quire bench, and what they share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/status.h"
#include "bench/dataset.h"

namespace quire::cli {

void add_bench_latency(CLI::App& bench, int& exit_code);
void add_bench_throughput(CLI::App& bench, int& exit_code);
void add_bench_perplexity(CLI::App& bench, int& exit_code);
void add_bench_serve(CLI::App& bench, int& exit_code);
void add_bench_kernels(CLI::App& bench, int& exit_code);

void add_dataset_options(CLI::App& command, bench::DatasetOptions& dataset);

// A line on standard error: over the one before while that is a terminal.
void show_progress(const std::string& text);
// Ends such a line.
void end_progress();

}  // namespace quire::cli
