// The line about throughput and load.
#include "cli/log_stats.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace quire::cli {
namespace {

std::string metrics(double prompts, double answers, int running) {
  return fmt::format(
      "# HELP vllm:prompt_tokens_total Tokens.\nvllm:prompt_tokens_total{{model_name=\"a b\"}} {}\n"
      "vllm:prompt_tokens_total_more 9\nvllm:generation_tokens_total{{model_name=\"a\"}} {}\n"
      "vllm:generation_tokens_total{{model_name=\"b\"}} 100\nvllm:num_requests_running{{model_name=\"a\"}} {}\n"
      "vllm:kv_cache_usage_perc{{model_name=\"a\"}} 0.125\nvllm:kv_cache_usage_perc{{model_name=\"b\"}} 0.0625\n",
      prompts, answers, running);
}

TEST(LogStats, AreRatesSinceTheLastLineOfAllModelsTogether) {
  LogStats stats;
  EXPECT_EQ(stats.line(metrics(50, 10, 1), 10), std::nullopt) << "nothing to compare with";
  EXPECT_EQ(stats.line(metrics(150, 30, 2), 10),
            "2 running, 0 waiting; prompts 10.0 tok/s, answers 2.0 tok/s; KV cache 12.5 % used");
}

TEST(LogStats, NothingIsSaidOfNothing) {
  LogStats stats;
  stats.line(metrics(50, 10, 0), 10);
  EXPECT_EQ(stats.line(metrics(50, 10, 0), 10), std::nullopt);
  EXPECT_NE(stats.line(metrics(50, 10, 1), 10), std::nullopt);
}

}  // namespace
}  // namespace quire::cli
