// quire bench serve: a load test of any OpenAI-compatible server.
#include <sys/resource.h>

#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>

#include "bench/report.h"
#include "bench/serve.h"
#include "cli/bench.h"
#include "cli/hub_options.h"
#include "cli/options.h"
#include "cli/tokenizer.h"

namespace quire::cli {
namespace {

namespace json = boost::json;

struct ServeCommand {
  bench::ServeOptions bench;
  std::string base_url;
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string tokenizer;
  HubFlags hub;
  bool skip_tokenizer_init = false;
  int64_t vocab_size = 1000;
  std::string api_key;
  std::vector<std::string> headers;
  std::vector<std::string> goodput;
  std::string percentile_metrics = "ttft,tpot,itl,e2el";
  bool save_result = false;
  bool save_detailed = false;
  std::string result_dir;
  std::string result_filename;
  std::string label;
};

// As many open connections as the system grants: one for each request under way.
void allow_many_connections() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

Status read_address(ServeCommand& options) {
  const std::string url =
      options.base_url.empty() ? fmt::format("http://{}:{}", options.host, options.port) : options.base_url;
  QUIRE_ASSIGN_OR_RETURN(options.bench.server.url, bench::parse_base_url(url));
  auto& headers = options.bench.server.headers;
  for (const std::string& header : options.headers) {
    const size_t equals = header.find('=');
    if (equals == 0 || equals == std::string::npos) {
      return invalid_argument("--header: \"{}\" is not NAME=VALUE", header);
    }
    headers.emplace_back(header.substr(0, equals), header.substr(equals + 1));
  }
  if (!options.api_key.empty()) headers.emplace_back("Authorization", "Bearer " + options.api_key);
  return {};
}

// The first one that the server lists.
Result<std::string> served_model(const bench::ServerAddress& server) {
  auto body = bench::get(server, "/v1/models");
  if (!body.ok()) return body.status().with_prefix("the server tells no model; name it with --model. ");
  json::error_code error;
  const json::value models = json::parse(*body, error);
  const auto* object = models.if_object();
  const auto* data = object != nullptr ? object->if_contains("data") : nullptr;
  const auto* list = data != nullptr ? data->if_array() : nullptr;
  if (list == nullptr || list->empty() || !list->front().is_object()) {
    return unavailable("the server tells no model; name it with --model");
  }
  const auto* id = list->front().get_object().if_contains("id");
  if (id == nullptr || !id->is_string()) return unavailable("the server tells no model; name it with --model");
  return std::string(id->get_string());
}

std::string now(const char* format) {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  localtime_r(&time, &parts);
  char text[64];
  return {text, std::strftime(text, sizeof(text), format, &parts)};
}

// Before the load, so that its results are not lost for want of a folder.
Status make_result_folder(const ServeCommand& options) {
  if (options.result_dir.empty()) return {};
  std::error_code error;
  std::filesystem::create_directories(options.result_dir, error);
  if (!error) return {};
  return invalid_argument("--result-dir \"{}\" cannot be made: {}", options.result_dir, error.message());
}

// As vLLM names it: <label>-<rate>qps[-concurrency<N>]-<model>-<date>.json
std::string result_path(const ServeCommand& options) {
  std::string file = options.result_filename;
  if (file.empty()) {
    const std::string concurrency =
        options.bench.max_concurrency ? fmt::format("-concurrency{}", *options.bench.max_concurrency) : "";
    const std::string model = options.bench.model.substr(options.bench.model.rfind('/') + 1);
    file = fmt::format("{}-{}qps{}-{}-{}.json", options.label.empty() ? "openai" : options.label,
                       options.bench.request_rate, concurrency, model, now("%Y%m%d-%H%M%S"));
  }
  return options.result_dir.empty() ? file : (std::filesystem::path(options.result_dir) / file).string();
}

void print_runs(const bench::ServeResult& result) {
  if (result.runs.size() < 2) return;
  std::printf("%-8s %12s %12s %14s %14s %8s\n", "Run", "out tok/s", "req/s", "median TTFT", "median TPOT", "failed");
  for (size_t i = 0; i < result.runs.size(); ++i) {
    const bench::ServeMetrics& run = result.runs[i].metrics;
    std::printf("%-8s %12.2f %12.2f %11.2f ms %11.2f ms %8lld\n",
                fmt::format("{}{}", i + 1, i == result.median ? " *" : "").c_str(), run.output_throughput,
                run.request_throughput, run.ttft.median, run.tpot.median, static_cast<long long>(run.failed));
  }
  std::printf("* the median run, shown below\n");
}

void print_failures(const std::vector<bench::RequestOutcome>& outcomes) {
  constexpr int kMost = 10;
  int shown = 0;
  for (const bench::RequestOutcome& outcome : outcomes) {
    if (outcome.success || shown++ >= kMost) continue;
    std::fprintf(stderr, "failed (%s): %s\n", std::string(bench::to_string(outcome.failure)).c_str(),
                 outcome.error.c_str());
  }
}

Status run(ServeCommand& options) {
  QUIRE_RETURN_IF_ERROR(read_address(options));
  options.bench.token_ids = options.skip_tokenizer_init;
  QUIRE_RETURN_IF_ERROR(bench::validate(options.bench));
  QUIRE_ASSIGN_OR_RETURN(options.bench.goodput, bench::parse_goodput(options.goodput));
  QUIRE_ASSIGN_OR_RETURN(const bench::ShownMetrics shown, bench::parse_shown_metrics(options.percentile_metrics));
  if (options.bench.model.empty()) {
    QUIRE_ASSIGN_OR_RETURN(options.bench.model, served_model(options.bench.server));
  }
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::optional<bench::PromptMaker> maker;
  if (options.skip_tokenizer_init) {
    if (options.vocab_size < 1)
      return invalid_argument("--vocab-size is {}; it must be at least 1", options.vocab_size);
    maker = bench::PromptMaker::of_ids(options.vocab_size, nullptr);
  } else {
    EngineConfig config;
    config.model = options.tokenizer;
    QUIRE_ASSIGN_OR_RETURN(tokenizer, load_tokenizer(config, options.hub));
    QUIRE_ASSIGN_OR_RETURN(maker, bench::PromptMaker::of_text(*tokenizer));
  }
  const bool writes = options.save_result || !options.result_filename.empty();
  if (writes) QUIRE_RETURN_IF_ERROR(make_result_folder(options));
  allow_many_connections();
  QUIRE_ASSIGN_OR_RETURN(const bench::ServeResult result, bench::run_serve(options.bench, *maker, show_progress));
  end_progress();

  const bench::ServeRun& median = result.runs[result.median];
  print_failures(median.outcomes);
  if (result.failed_warmups > 0) {
    std::fprintf(stderr, "%lld warm-up requests failed\n", static_cast<long long>(result.failed_warmups));
  }
  print_runs(result);
  std::fputs(bench::metrics_table(
                 median.metrics, shown,
                 {.max_concurrency = options.bench.max_concurrency, .request_rate = options.bench.request_rate})
                 .c_str(),
             stdout);
  std::fputs(bench::speculation_table(result.speculation).c_str(), stdout);
  if (writes) {
    json::object results{{"date", now("%Y%m%d-%H%M%S")}, {"label", options.label}};
    for (auto& [key, value] : bench::serve_json(options.bench, result, shown, options.save_detailed)) {
      results[key] = std::move(value);
    }
    QUIRE_RETURN_IF_ERROR(bench::write_json(result_path(options), results));
  }
  int64_t completed = 0;
  for (const bench::ServeRun& one : result.runs) completed += one.metrics.completed;
  if (completed == 0) return unavailable("every request failed; the first: {}", median.outcomes.front().error);
  return {};
}

}  // namespace

void add_bench_serve(CLI::App& bench, int& exit_code) {
  auto options = std::make_shared<ServeCommand>();
  CLI::App* command =
      bench.add_subcommand("serve", "Load on any OpenAI-compatible server: TTFT, TPOT, ITL, E2EL, throughput, goodput");
  const auto in = [command](const char* group) {
    return [command, group](const char* name, auto& value, const char* help) {
      return command->add_option(name, value, help)->group(group)->capture_default_str();
    };
  };
  const auto server = in("Server");
  server("--base-url", options->base_url, "http://host:port; otherwise of --host and --port");
  server("--host", options->host, "The server's");
  server("--port", options->port, "The server's");
  server("--endpoint", options->bench.endpoint, "/v1/completions, or /v1/chat/completions");
  server("--model", options->bench.model, "As the server calls it; otherwise the first that it lists");
  command
      ->add_option("--lora-modules", options->bench.lora_modules,
                   "Names of adapters (and the model's, if it is to have some) that requests are spread over")
      ->group("Server");
  server("--lora-assignment", options->bench.lora_assignment,
         "Which request has which: random, round-robin, zipf (the first is asked for most)");
  server("--api-key", options->api_key, "Sent as a bearer token");
  command->add_option("--header", options->headers, "NAME=VALUE, sent along; may be repeated")->group("Server");
  server("--timeout", options->bench.server.timeout_seconds, "Seconds without a byte after which a request has failed")
      ->check(CLI::PositiveNumber);

  const auto load = in("Load");
  load("--request-rate", options->bench.request_rate, "Requests a second (a Poisson process); inf: all at once");
  load("--burstiness", options->bench.burstiness, "Under 1: requests come in bursts; over 1: more evenly");
  command
      ->add_option("--max-concurrency", options->bench.max_concurrency,
                   "Requests under way at once; with --request-rate inf a closed loop")
      ->group("Load");
  load("--seed", options->bench.seed, "Of prompts and arrivals; run i uses seed + i");
  load("--num-warmups", options->bench.num_warmups, "Requests before, not counted");
  load("--num-runs", options->bench.num_runs, "The run of median throughput is reported, and all are listed");
  load("--temperature", options->bench.temperature, "0: always the likeliest token");
  command->add_flag("--ignore-eos", options->bench.ignore_eos, "Answers go on to their full length")->group("Load");

  add_dataset_options(*command, options->bench.dataset);
  const auto dataset = in("Dataset");
  add_hub_options(*command, options->hub);
  dataset("--tokenizer", options->tokenizer,
          "A model, its name on the Hub, or a tokenizer.json: makes prompts of exact length, and counts tokens where "
          "the server does not; "
          "nothing: the default model's");
  command
      ->add_flag("--skip-tokenizer-init", options->skip_tokenizer_init,
                 "Send token ids under --vocab-size instead of texts")
      ->group("Dataset");
  dataset("--vocab-size", options->vocab_size, "With --skip-tokenizer-init");

  const auto report = in("Report");
  command
      ->add_option("--goodput", options->goodput,
                   "What a good request keeps, in milliseconds: ttft:500 tpot:50 e2el:5000; its rate is the goodput")
      ->group("Report");
  report("--percentile-metrics", options->percentile_metrics, "Which are shown, of ttft, tpot, itl, e2el");
  report("--metric-percentiles", options->bench.percents, "Percentiles shown")->delimiter(',');
  command->add_flag("--save-result", options->save_result, "Write a JSON file")->group("Report");
  command->add_flag("--save-detailed", options->save_detailed, "With each request's figures")->group("Report");
  report("--result-dir", options->result_dir, "Where to; otherwise here");
  report("--result-filename", options->result_filename, "Its name; otherwise one of rate, model and date");
  report("--label", options->label, "Beginning of that name");
  command->callback([options, &exit_code] { exit_code = exit_code_of(run(*options)); });
}

}  // namespace quire::cli
