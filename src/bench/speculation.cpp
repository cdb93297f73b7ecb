#include "bench/speculation.h"

#include <charconv>

#include "bench/report.h"

namespace quire::bench {
namespace {

double acceptance_rate(const SpeculationCounts& counts) {
  return 100 * static_cast<double>(counts.accepted_tokens) / static_cast<double>(counts.draft_tokens);
}
// Tokens that a run with drafts gave.
double acceptance_length(const SpeculationCounts& counts) {
  return 1 + static_cast<double>(counts.accepted_tokens) / static_cast<double>(counts.drafts);
}

// The value of a line "name{labels} value".
double value_of(std::string_view line) {
  const size_t space = line.rfind(' ');
  double value = 0;
  if (space != std::string_view::npos) std::from_chars(line.data() + space + 1, line.data() + line.size(), value);
  return value;
}

}  // namespace

SpeculationCounts speculation_of(const engine::EngineStats& stats) {
  return {stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens};
}

SpeculationCounts speculation_of(std::string_view metrics) {
  SpeculationCounts counts;
  struct Named {
    std::string_view name;
    int64_t* count;
  };
  const Named names[] = {{"vllm:spec_decode_num_drafts", &counts.drafts},
                         {"vllm:spec_decode_num_draft_tokens", &counts.draft_tokens},
                         {"vllm:spec_decode_num_accepted_tokens", &counts.accepted_tokens}};
  while (!metrics.empty()) {
    const size_t end = metrics.find('\n');
    const std::string_view line = metrics.substr(0, end);
    metrics = end == std::string_view::npos ? std::string_view() : metrics.substr(end + 1);
    std::string_view name = line.substr(0, line.find_first_of("{ "));
    if (name.ends_with("_total")) name.remove_suffix(6);
    for (const Named& one : names) {
      if (name == one.name) *one.count += static_cast<int64_t>(value_of(line));
    }
  }
  return counts;
}

boost::json::object speculation_json(const SpeculationCounts& counts) {
  if (counts.drafts == 0) return {};
  return {{"spec_decode_acceptance_rate", figure(acceptance_rate(counts))},
          {"spec_decode_acceptance_length", figure(acceptance_length(counts))},
          {"spec_decode_num_drafts", counts.drafts},
          {"spec_decode_draft_tokens", counts.draft_tokens},
          {"spec_decode_accepted_tokens", counts.accepted_tokens}};
}

std::string speculation_table(const SpeculationCounts& counts) {
  if (counts.drafts == 0) return {};
  return heading("Speculative Decoding", '-') + line("Acceptance rate (%):", acceptance_rate(counts)) +
         line("Acceptance length:", acceptance_length(counts)) + line("Drafts:", counts.drafts) +
         line("Draft tokens:", counts.draft_tokens) + line("Accepted tokens:", counts.accepted_tokens);
}

}  // namespace quire::bench
