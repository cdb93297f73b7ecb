// The figures of a load test out of its requests' outcomes, in vLLM's words: time to first token (TTFT), time per
// output token after the first (TPOT), inter-token latency (ITL), end-to-end latency (E2EL), goodput.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"
#include "bench/answer_reader.h"
#include "bench/statistics.h"

namespace quire::bench {

// What a request must keep to be a good one; milliseconds.
struct Goodput {
  std::optional<double> ttft;
  std::optional<double> tpot;
  std::optional<double> e2el;
  bool empty() const { return !ttft && !tpot && !e2el; }
};

// "ttft:500", "tpot:50", "e2el:3000". Errors: invalid_argument.
Result<Goodput> parse_goodput(std::span<const std::string> words);

struct Url {
  std::string host;
  std::string port;
  std::string path;  // before the endpoint's; no slash at its end
};
// "http://host[:port][/path]". Errors: invalid_argument; unimplemented for https.
Result<Url> parse_base_url(std::string_view url);

// One request's time per token after the first, in seconds; 0 when there are none.
double time_per_output_token(const RequestOutcome& outcome);

struct ServeMetrics {
  double duration = 0;  // seconds
  int64_t completed = 0;
  int64_t failed = 0;
  std::array<int64_t, kNumFailureKinds> failed_by_kind{};
  int64_t retried = 0;            // requests sent again because a kept connection was closed
  int64_t total_input = 0;        // tokens, of those completed
  int64_t total_output = 0;       // the same
  double request_throughput = 0;  // a second, as are the next three
  double output_throughput = 0;
  double total_token_throughput = 0;
  std::optional<double> request_goodput;
  double max_output_tokens_per_s = 0;   // in the best whole second
  int64_t max_concurrent_requests = 0;  // that ran in one and the same second
  Summary ttft, tpot, itl, e2el;        // milliseconds
};
ServeMetrics compute_metrics(std::span<const RequestOutcome> outcomes, double duration,
                             std::span<const double> percents, const Goodput& goodput);

// Which of ttft, tpot, itl, e2el are shown.
struct ShownMetrics {
  bool ttft = true;
  bool tpot = true;
  bool itl = true;
  bool e2el = true;
};
// "ttft,tpot,itl". Errors: invalid_argument.
Result<ShownMetrics> parse_shown_metrics(std::string_view list);

boost::json::object metrics_json(const ServeMetrics& metrics, const ShownMetrics& shown);
// Each request's own figures: input_lens, output_lens, ttfts, itls, latencies, start_times, generated_texts, errors.
boost::json::object details_json(std::span<const RequestOutcome> outcomes);

struct TableHeader {
  std::optional<int64_t> max_concurrency;
  double request_rate = 0;  // infinite: not shown
};
std::string metrics_table(const ServeMetrics& metrics, const ShownMetrics& shown, const TableHeader& header);

}  // namespace quire::bench
