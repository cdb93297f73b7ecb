#include "bench/serve_metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "bench/report.h"

namespace quire::bench {
namespace {

namespace json = boost::json;

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

bool is_good(const RequestOutcome& outcome, const Goodput& goodput) {
  const auto keeps = [](const std::optional<double>& most, double seconds) { return !most || seconds * 1000 <= *most; };
  return keeps(goodput.ttft, outcome.ttft) && keeps(goodput.tpot, time_per_output_token(outcome)) &&
         keeps(goodput.e2el, outcome.latency);
}

// Counts by whole seconds from the first request's start.
void find_peaks(std::span<const RequestOutcome> outcomes, ServeMetrics& metrics) {
  double begin = std::numeric_limits<double>::infinity();
  double end = 0;
  for (const RequestOutcome& outcome : outcomes) {
    if (!outcome.success) continue;
    begin = std::min(begin, outcome.start);
    end = std::max(end, outcome.start + outcome.latency);
  }
  if (metrics.completed == 0) return;
  std::vector<double> tokens(static_cast<size_t>(end - begin) + 1);
  std::vector<int64_t> running(tokens.size());
  for (const RequestOutcome& outcome : outcomes) {
    if (!outcome.success) continue;
    const auto second = [&](double time) { return std::min(static_cast<size_t>(time - begin), tokens.size() - 1); };
    // Events may bring several tokens each: the answer's are shared out among them.
    const double share = static_cast<double>(outcome.output_tokens) / static_cast<double>(outcome.itls.size() + 1);
    double now = outcome.start + outcome.ttft;
    tokens[second(now)] += share;
    for (const double itl : outcome.itls) {
      now += itl;
      tokens[second(now)] += share;
    }
    for (size_t s = second(outcome.start); s <= second(outcome.start + outcome.latency); ++s) ++running[s];
  }
  metrics.max_output_tokens_per_s = *std::max_element(tokens.begin(), tokens.end());
  metrics.max_concurrent_requests = *std::max_element(running.begin(), running.end());
}

struct MetricRow {
  const char* key;
  const char* name;
  const char* heading;
  bool shown;
  const Summary* summary;
};

std::array<MetricRow, 4> rows(const ServeMetrics& metrics, const ShownMetrics& shown) {
  return {MetricRow{"ttft", "TTFT", "Time to First Token", shown.ttft, &metrics.ttft},
          MetricRow{"tpot", "TPOT", "Time per Output Token (excl. 1st token)", shown.tpot, &metrics.tpot},
          MetricRow{"itl", "ITL", "Inter-token Latency", shown.itl, &metrics.itl},
          MetricRow{"e2el", "E2EL", "End-to-end Latency", shown.e2el, &metrics.e2el}};
}

}  // namespace

Result<Goodput> parse_goodput(std::span<const std::string> words) {
  Goodput goodput;
  for (const std::string& word : words) {
    const size_t colon = word.find(':');
    const std::string name = word.substr(0, colon);
    std::optional<double>* place = name == "ttft"   ? &goodput.ttft
                                   : name == "tpot" ? &goodput.tpot
                                   : name == "e2el" ? &goodput.e2el
                                                    : nullptr;
    const std::optional<double> value =
        colon != std::string::npos ? parse_number(std::string_view(word).substr(colon + 1)) : std::nullopt;
    if (place == nullptr || !value || *value < 0) {
      return invalid_argument("--goodput: \"{}\" is not ttft, tpot or e2el, a colon and milliseconds (ttft:500)", word);
    }
    *place = *value;
  }
  return goodput;
}

Result<Url> parse_base_url(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  const std::string_view whole = url;
  if (url.starts_with("https://")) {
    return unimplemented("--base-url {}: only http is spoken; put the load on the server itself, not on its proxy",
                         whole);
  }
  if (url.starts_with(kScheme)) url.remove_prefix(kScheme.size());
  Url parts;
  const size_t slash = url.find('/');
  if (slash != std::string_view::npos) parts.path = url.substr(slash);
  while (parts.path.ends_with('/')) parts.path.pop_back();
  std::string_view authority = url.substr(0, slash);
  if (authority.starts_with('[')) {  // an IPv6 address
    const size_t close = authority.find(']');
    if (close == std::string_view::npos) return invalid_argument("--base-url {}: \"[\" without \"]\"", whole);
    parts.host = authority.substr(1, close - 1);
    authority.remove_prefix(close + 1);
  } else {
    const size_t colon = std::min(authority.find(':'), authority.size());
    parts.host = authority.substr(0, colon);
    authority.remove_prefix(colon);
  }
  parts.port = authority.empty() ? "80" : std::string(authority.substr(1));
  const bool is_port = authority.empty() ||
                       (authority[0] == ':' && !parts.port.empty() && parts.port.size() <= 5 &&
                        std::all_of(parts.port.begin(), parts.port.end(), [](char c) { return c >= '0' && c <= '9'; }));
  if (parts.host.empty() || !is_port) {
    return invalid_argument("--base-url {}: expected http://host:port", whole);
  }
  return parts;
}

double time_per_output_token(const RequestOutcome& outcome) {
  if (outcome.output_tokens <= 1) return 0;
  return (outcome.latency - outcome.ttft) / static_cast<double>(outcome.output_tokens - 1);
}

ServeMetrics compute_metrics(std::span<const RequestOutcome> outcomes, double duration,
                             std::span<const double> percents, const Goodput& goodput) {
  ServeMetrics metrics{.duration = duration};
  std::vector<double> ttfts, tpots, itls, e2els;
  int64_t good = 0;
  for (const RequestOutcome& outcome : outcomes) {
    metrics.retried += outcome.retried ? 1 : 0;
    if (!outcome.success) {
      ++metrics.failed;
      ++metrics.failed_by_kind[static_cast<size_t>(outcome.failure)];
      continue;
    }
    ++metrics.completed;
    metrics.total_input += outcome.prompt_len;
    metrics.total_output += outcome.output_tokens;
    ttfts.push_back(outcome.ttft * 1000);
    e2els.push_back(outcome.latency * 1000);
    if (outcome.output_tokens > 1) tpots.push_back(time_per_output_token(outcome) * 1000);
    for (const double itl : outcome.itls) itls.push_back(itl * 1000);
    if (is_good(outcome, goodput)) ++good;
  }
  const auto rate = [&](int64_t count) { return duration > 0 ? static_cast<double>(count) / duration : 0.0; };
  metrics.request_throughput = rate(metrics.completed);
  metrics.output_throughput = rate(metrics.total_output);
  metrics.total_token_throughput = rate(metrics.total_input + metrics.total_output);
  if (!goodput.empty()) metrics.request_goodput = rate(good);
  metrics.ttft = summarize(ttfts, percents);
  metrics.tpot = summarize(tpots, percents);
  metrics.itl = summarize(itls, percents);
  metrics.e2el = summarize(e2els, percents);
  find_peaks(outcomes, metrics);
  return metrics;
}

Result<ShownMetrics> parse_shown_metrics(std::string_view list) {
  ShownMetrics shown{false, false, false, false};
  while (!list.empty()) {
    const std::string_view word = list.substr(0, list.find(','));
    list.remove_prefix(std::min(word.size() + 1, list.size()));
    if (word == "ttft") {
      shown.ttft = true;
    } else if (word == "tpot") {
      shown.tpot = true;
    } else if (word == "itl") {
      shown.itl = true;
    } else if (word == "e2el") {
      shown.e2el = true;
    } else {
      return invalid_argument("--percentile-metrics: \"{}\" is none of ttft, tpot, itl, e2el", word);
    }
  }
  return shown;
}

json::object metrics_json(const ServeMetrics& metrics, const ShownMetrics& shown) {
  json::object by_kind;
  for (int kind = 0; kind < kNumFailureKinds; ++kind) {
    by_kind[to_string(static_cast<FailureKind>(kind))] = metrics.failed_by_kind[static_cast<size_t>(kind)];
  }
  json::object result{{"duration", figure(metrics.duration)},
                      {"completed", metrics.completed},
                      {"failed", metrics.failed},
                      {"failed_by_kind", by_kind},
                      {"retried", metrics.retried},
                      {"total_input_tokens", metrics.total_input},
                      {"total_output_tokens", metrics.total_output},
                      {"request_throughput", figure(metrics.request_throughput)},
                      {"request_goodput", metrics.request_goodput ? figure(*metrics.request_goodput) : json::value()},
                      {"output_throughput", figure(metrics.output_throughput)},
                      {"total_token_throughput", figure(metrics.total_token_throughput)},
                      {"max_output_tokens_per_s", figure(metrics.max_output_tokens_per_s)},
                      {"max_concurrent_requests", metrics.max_concurrent_requests}};
  for (const MetricRow& row : rows(metrics, shown)) {
    if (!row.shown) continue;
    const std::string suffix = std::string("_") + row.key + "_ms";
    result["mean" + suffix] = figure(row.summary->mean);
    result["median" + suffix] = figure(row.summary->median);
    result["std" + suffix] = figure(row.summary->standard_deviation);
    for (const auto& [percent, value] : row.summary->percentiles) {
      result["p" + percent_name(percent) + suffix] = figure(value);
    }
  }
  return result;
}

json::object details_json(std::span<const RequestOutcome> outcomes) {
  json::array input_lens, output_lens, ttfts, itls, latencies, start_times, texts, errors;
  for (const RequestOutcome& outcome : outcomes) {
    input_lens.push_back(outcome.prompt_len);
    output_lens.push_back(outcome.success ? outcome.output_tokens : 0);
    ttfts.push_back(figure(outcome.ttft));
    itls.push_back(figures(outcome.itls));
    latencies.push_back(figure(outcome.latency));
    start_times.push_back(figure(outcome.start));
    texts.push_back(json::string(outcome.text));
    errors.push_back(outcome.success ? json::string() : json::string(outcome.error));
  }
  return {{"input_lens", input_lens}, {"output_lens", output_lens}, {"ttfts", ttfts},           {"itls", itls},
          {"latencies", latencies},   {"start_times", start_times}, {"generated_texts", texts}, {"errors", errors}};
}

std::string metrics_table(const ServeMetrics& metrics, const ShownMetrics& shown, const TableHeader& header) {
  std::string table = heading("Serving Benchmark Result", '=');
  table += line("Successful requests:", metrics.completed);
  table += line("Failed requests:", metrics.failed);
  for (int kind = 0; kind < kNumFailureKinds; ++kind) {
    const int64_t count = metrics.failed_by_kind[static_cast<size_t>(kind)];
    if (count > 0) table += line(fmt::format("  {}:", to_string(static_cast<FailureKind>(kind))), count);
  }
  if (metrics.retried > 0) table += line("Requests sent again (closed connection):", metrics.retried);
  if (header.max_concurrency) table += line("Maximum request concurrency:", *header.max_concurrency);
  if (std::isfinite(header.request_rate)) table += line("Request rate configured (RPS):", header.request_rate);
  table += line("Benchmark duration (s):", metrics.duration);
  table += line("Total input tokens:", metrics.total_input);
  table += line("Total generated tokens:", metrics.total_output);
  table += line("Request throughput (req/s):", metrics.request_throughput);
  if (metrics.request_goodput) table += line("Request goodput (req/s):", *metrics.request_goodput);
  table += line("Output token throughput (tok/s):", metrics.output_throughput);
  table += line("Peak output token throughput (tok/s):", metrics.max_output_tokens_per_s);
  table += line("Peak concurrent requests:", static_cast<double>(metrics.max_concurrent_requests));
  table += line("Total token throughput (tok/s):", metrics.total_token_throughput);
  for (const MetricRow& row : rows(metrics, shown)) {
    if (!row.shown) continue;
    table += heading(row.heading, '-');
    table += line(fmt::format("Mean {} (ms):", row.name), row.summary->mean);
    table += line(fmt::format("Median {} (ms):", row.name), row.summary->median);
    for (const auto& [percent, value] : row.summary->percentiles) {
      table += line(fmt::format("P{} {} (ms):", percent_name(percent), row.name), value);
    }
  }
  return table + heading("", '=');
}

}  // namespace quire::bench
