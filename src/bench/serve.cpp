#include "bench/serve.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "bench/arrivals.h"
#include "bench/report.h"

namespace quire::bench {
namespace {

namespace json = boost::json;

bool is_chat(const ServeOptions& options) {
  return options.endpoint.ends_with("/chat/completions");
}

// Of each request.
std::vector<std::string> models_of(const ServeOptions& options, size_t count, std::mt19937_64& random) {
  const std::vector<std::string>& names = options.lora_modules;
  std::vector<std::string> models(count, options.model);
  if (names.empty()) return models;
  std::vector<double> weights;
  for (size_t i = 0; i < names.size(); ++i)
    weights.push_back(options.lora_assignment == "zipf" ? 1.0 / static_cast<double>(i + 1) : 1.0);
  std::discrete_distribution<size_t> draw(weights.begin(), weights.end());
  for (size_t i = 0; i < count; ++i)
    models[i] = names[options.lora_assignment == "round-robin" ? i % names.size() : draw(random)];
  return models;
}

Result<ServeRun> run_once(const ServeOptions& options, const std::vector<Sample>& samples, uint64_t seed,
                          const PromptMaker& maker, const std::string& name,
                          const std::function<void(const std::string&)>& report) {
  std::mt19937_64 random(seed);
  const auto count = static_cast<int64_t>(samples.size());
  const std::vector<double> times = arrival_times(count, options.request_rate, options.burstiness, random);
  const std::vector<std::string> models = models_of(options, samples.size(), random);
  std::vector<LoadRequest> requests;
  for (size_t i = 0; i < samples.size(); ++i) {
    requests.push_back({.body = request_body(options, samples[i], models[i]), .send_at = times[i]});
  }
  const Load load{.server = options.server,
                  .path = options.endpoint,
                  .is_chat = is_chat(options),
                  .max_concurrency = options.max_concurrency,
                  .requests = requests};
  const int64_t step = std::max<int64_t>(1, count / 20);
  QUIRE_ASSIGN_OR_RETURN(LoadResult result, put_load(load, [&](int64_t done) {
                           if (done % step == 0 || done == count) {
                             report(fmt::format("{}: {}/{} requests", name, done, count));
                           }
                         }));
  for (size_t i = 0; i < samples.size(); ++i) {
    RequestOutcome& outcome = result.outcomes[i];
    outcome.prompt_len = samples[i].prompt_len();
    if (!outcome.success || outcome.output_tokens > 0) continue;
    // The server told no usage.
    outcome.output_tokens =
        maker.tokenizer() != nullptr
            ? static_cast<int64_t>(maker.tokenizer()->encode(outcome.text, /*add_special_tokens=*/false).size())
            : static_cast<int64_t>(outcome.itls.size()) + 1;
  }
  return ServeRun{.metrics = compute_metrics(result.outcomes, result.duration, options.percents, options.goodput),
                  .outcomes = std::move(result.outcomes)};
}

}  // namespace

Status validate(const ServeOptions& options) {
  QUIRE_RETURN_IF_ERROR(validate(options.dataset));
  if (!(options.request_rate > 0))
    return invalid_argument("--request-rate is {}; it must be over 0, or inf", options.request_rate);
  if (!(options.burstiness > 0)) return invalid_argument("--burstiness is {}; it must be over 0", options.burstiness);
  if (options.max_concurrency && *options.max_concurrency < 1) {
    return invalid_argument("--max-concurrency is {}; it must be at least 1", *options.max_concurrency);
  }
  if (options.lora_assignment != "random" && options.lora_assignment != "round-robin" &&
      options.lora_assignment != "zipf") {
    return invalid_argument("--lora-assignment is \"{}\"; choose one of: random, round-robin, zipf",
                            options.lora_assignment);
  }
  if (options.num_runs < 1) return invalid_argument("--num-runs is {}; it must be at least 1", options.num_runs);
  if (options.num_warmups < 0)
    return invalid_argument("--num-warmups is {}; it must be at least 0", options.num_warmups);
  if (!options.endpoint.starts_with('/')) {
    return invalid_argument("--endpoint is \"{}\"; it must be a path such as /v1/completions", options.endpoint);
  }
  if (options.token_ids && is_chat(options)) {
    return invalid_argument("a chat takes texts; with --skip-tokenizer-init the endpoint must be /v1/completions");
  }
  for (const double percent : options.percents) {
    if (!(percent >= 0 && percent <= 100)) {
      return invalid_argument("--metric-percentiles: {} does not lie in [0, 100]", percent);
    }
  }
  return {};
}

std::string request_body(const ServeOptions& options, const Sample& sample, const std::string& model) {
  json::object body{{"model", model},
                    {"max_tokens", sample.output_len},
                    {"temperature", options.temperature},
                    {"stream", true},
                    {"stream_options", json::object{{"include_usage", true}}}};
  if (options.ignore_eos) body["ignore_eos"] = true;
  if (is_chat(options)) {
    body["messages"] = json::array{json::object{{"role", "user"}, {"content", sample.prompt}}};
  } else if (options.token_ids) {
    body["prompt"] = json::array(sample.prompt_ids.begin(), sample.prompt_ids.end());
  } else {
    body["prompt"] = sample.prompt;
  }
  return json::serialize(body);
}

namespace {

// Other servers may have no such page, or be asked for a key that we do not have.
SpeculationCounts speculation_so_far(const ServerAddress& server) {
  constexpr std::chrono::seconds kPatience{2};
  const auto page = get(server, "/metrics", kPatience);
  return page.ok() ? speculation_of(std::string_view(*page)) : SpeculationCounts();
}

}  // namespace

Result<ServeResult> run_serve(const ServeOptions& options, const PromptMaker& maker,
                              const std::function<void(const std::string&)>& report) {
  QUIRE_RETURN_IF_ERROR(validate(options));
  ServeResult result;
  if (options.num_warmups > 0) {
    DatasetOptions dataset = options.dataset;
    dataset.num_prompts = options.num_warmups;
    const uint64_t seed = options.seed + static_cast<uint64_t>(options.num_runs);
    QUIRE_ASSIGN_OR_RETURN(const std::vector<Sample> samples, make_samples(dataset, maker, seed));
    QUIRE_ASSIGN_OR_RETURN(const ServeRun run, run_once(options, samples, seed, maker, "warm-up", report));
    result.failed_warmups = run.metrics.failed;
  }
  const SpeculationCounts before = speculation_so_far(options.server);
  std::vector<double> throughputs;
  for (int64_t i = 0; i < options.num_runs; ++i) {
    const uint64_t seed = options.seed + static_cast<uint64_t>(i);
    QUIRE_ASSIGN_OR_RETURN(const std::vector<Sample> samples, make_samples(options.dataset, maker, seed));
    QUIRE_ASSIGN_OR_RETURN(ServeRun run, run_once(options, samples, seed, maker,
                                                  fmt::format("run {}/{}", i + 1, options.num_runs), report));
    throughputs.push_back(run.metrics.output_throughput);
    result.runs.push_back(std::move(run));
  }
  result.median = median_index(throughputs);
  result.speculation = speculation_so_far(options.server).since(before);
  return result;
}

json::object serve_json(const ServeOptions& options, const ServeResult& result, const ShownMetrics& shown,
                        bool with_details) {
  json::object all{
      {"endpoint_type", is_chat(options) ? "openai-chat" : "openai"},
      {"model_id", options.model},
      {"lora_modules", static_cast<int64_t>(options.lora_modules.size())},
      {"lora_assignment", options.lora_modules.empty() ? json::value() : json::value(options.lora_assignment)},
      {"dataset_name", options.dataset.name},
      {"num_prompts", options.dataset.num_prompts},
      {"request_rate", std::isfinite(options.request_rate) ? json::value(options.request_rate) : json::value("inf")},
      {"burstiness", options.burstiness},
      {"max_concurrency", options.max_concurrency ? json::value(*options.max_concurrency) : json::value()},
      {"seed", options.seed},
      {"num_warmups", options.num_warmups},
      {"failed_warmups", result.failed_warmups},
      {"num_runs", static_cast<int64_t>(result.runs.size())},
      {"median_run", static_cast<int64_t>(result.median)}};
  const ServeRun& median = result.runs[result.median];
  const auto add = [&](json::object&& more) {
    for (auto& [key, value] : more) all[key] = std::move(value);
  };
  add(metrics_json(median.metrics, shown));
  add(speculation_json(result.speculation));
  if (with_details) add(details_json(median.outcomes));
  json::array runs;
  for (const ServeRun& run : result.runs) runs.push_back(metrics_json(run.metrics, shown));
  all["runs"] = std::move(runs);
  return all;
}

}  // namespace quire::bench
