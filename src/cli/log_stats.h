// The line that `quire serve` logs every ten seconds in which something was done.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace quire::cli {

class LogStats {
 public:
  // `metrics`: the text of the registry now (base/metrics.h); `seconds`: since the call before. Models are taken
  // together. nullopt when no token came and nobody runs or waits, and at the first call.
  //   "2 running, 0 waiting; prompts 120.3 tok/s, answers 88.0 tok/s; KV cache 12.5 % used; prefix cache 40.1 % hits"
  std::optional<std::string> line(std::string_view metrics, double seconds);

 private:
  struct Counts {
    double prompt_tokens = 0;
    double generation_tokens = 0;
    double prefix_queries = 0;
    double prefix_hits = 0;
  };
  std::optional<Counts> before_;
};

// The sum over labels of a metric in Prometheus' text, or the largest of them; 0: there is none.
double sum_of(std::string_view metrics, std::string_view name);
double largest_of(std::string_view metrics, std::string_view name);

}  // namespace quire::cli
