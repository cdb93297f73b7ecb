// quire replay: a recorded trace through the scheduler, without a model.
#include <cstdio>
#include <fstream>

#include "base/named_file.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "engine/trace.h"

namespace quire::cli {
namespace {

Status run(const std::string& path) {
  QUIRE_RETURN_IF_ERROR(check_file(path, FileUse::kReadOnce));
  std::ifstream file(path);
  if (!file) return not_found("cannot read \"{}\"; name a file written by --trace-file", path);
  auto report = engine::replay(file);
  if (!report.ok()) return report.status().with_prefix(path + ": ");
  const sched::SchedulerStats& last = report->last;
  std::printf("%lld requests, %lld steps, %lld tokens computed, %lld sampled\n",
              static_cast<long long>(report->num_requests), static_cast<long long>(report->num_steps),
              static_cast<long long>(report->num_tokens), static_cast<long long>(report->num_sampled));
  std::printf("at the end: %d running, %d waiting, %d of %d blocks used, %llu preemptions, prefix cache %lld of %lld\n",
              last.running, last.waiting, last.blocks_used, last.blocks_total,
              static_cast<unsigned long long>(last.preemptions), static_cast<long long>(last.prefix_hit_tokens),
              static_cast<long long>(last.prefix_query_tokens));
  if (report->difference.empty()) {
    std::puts("every plan is as recorded");
    return {};
  }
  return internal_error("the scheduler plans differently from {}", report->difference);
}

}  // namespace

void add_replay_command(CLI::App& program, int& exit_code) {
  auto path = std::make_shared<std::string>();
  CLI::App* command = program.add_subcommand("replay", "Take a recorded trace through the scheduler, without a model");
  command->add_option("trace", *path, "Written by --trace-file")->type_name("FILE")->required();
  command->callback([path, &exit_code] { exit_code = exit_code_of(run(*path)); });
}

}  // namespace quire::cli
