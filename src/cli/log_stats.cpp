#include "cli/log_stats.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

namespace quire::cli {
namespace {

// Calls `use` with each value of the metric.
template <typename Use>
void for_each_value(std::string_view metrics, std::string_view name, Use use) {
  while (!metrics.empty()) {
    const size_t end = metrics.find('\n');
    const std::string_view line = metrics.substr(0, end);
    metrics = end == std::string_view::npos ? std::string_view() : metrics.substr(end + 1);
    if (!line.starts_with(name) || line.size() == name.size()) continue;
    const char next = line[name.size()];
    if (next != '{' && next != ' ') continue;
    const size_t space = line.rfind(' ');
    if (space != std::string_view::npos) use(std::strtod(std::string(line.substr(space + 1)).c_str(), nullptr));
  }
}

}  // namespace

double sum_of(std::string_view metrics, std::string_view name) {
  double sum = 0;
  for_each_value(metrics, name, [&sum](double value) { sum += value; });
  return sum;
}

double largest_of(std::string_view metrics, std::string_view name) {
  double largest = 0;
  for_each_value(metrics, name, [&largest](double value) { largest = std::max(largest, value); });
  return largest;
}

std::optional<std::string> LogStats::line(std::string_view metrics, double seconds) {
  const Counts now{.prompt_tokens = sum_of(metrics, "vllm:prompt_tokens_total"),
                   .generation_tokens = sum_of(metrics, "vllm:generation_tokens_total"),
                   .prefix_queries = sum_of(metrics, "vllm:prefix_cache_queries_total"),
                   .prefix_hits = sum_of(metrics, "vllm:prefix_cache_hits_total")};
  const double running = sum_of(metrics, "vllm:num_requests_running");
  const double waiting = sum_of(metrics, "vllm:num_requests_waiting");
  const std::optional<Counts> before = before_;
  before_ = now;
  if (!before) return std::nullopt;
  const double prompts = now.prompt_tokens - before->prompt_tokens;
  const double answers = now.generation_tokens - before->generation_tokens;
  if (prompts <= 0 && answers <= 0 && running <= 0 && waiting <= 0) return std::nullopt;
  std::string text = fmt::format(
      "{:.0f} running, {:.0f} waiting; prompts {:.1f} tok/s, answers {:.1f} tok/s; KV cache {:.1f} % used", running,
      waiting, prompts / seconds, answers / seconds, largest_of(metrics, "vllm:kv_cache_usage_perc") * 100);
  const double queries = now.prefix_queries - before->prefix_queries;
  if (queries > 0) {
    text += fmt::format("; prefix cache {:.1f} % hits", (now.prefix_hits - before->prefix_hits) / queries * 100);
  }
  return text;
}

}  // namespace quire::cli
