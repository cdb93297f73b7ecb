#include "bench/latency.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>

#include <fmt/format.h>

#include "base/host_memory.h"
#include "bench/dataset.h"
#include "bench/process_clock.h"
#include "bench/report.h"
#include "bench/statistics.h"
#include "engine/output.h"

namespace quire::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kPercents[] = {10, 25, 50, 75, 90, 99};

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

Status take_in(engine::OutputDelta delta, BatchTimes& times) {
  times.output_tokens += static_cast<int64_t>(delta.tokens.size());
  times.cached_tokens += delta.num_cached_tokens.value_or(0);
  if (delta.finish == FinishReason::kError) return std::move(delta.error);
  if (delta.finish == FinishReason::kAbort) return internal_error("the engine gave up a request");
  return {};
}

// Follows a batch to the moment at which every sequence has a token. Told on the engine's thread, which also counts
// what was given out until then: a thread that had to be woken first would count later tokens as well.
class FirstTokens {
 public:
  using Completions = std::vector<std::unique_ptr<engine::Completion>>;
  FirstTokens(Completions& completions, BatchTimes& times)
      : completions_(completions), times_(times), missing_(completions.size()), told_(completions.size()) {}

  void tell(size_t sequence) {
    const Clock::time_point now = Clock::now();
    const std::lock_guard lock(mutex_);
    if (told_[sequence]) return;
    told_[sequence] = true;
    if (missing_ == told_.size()) first_ = now;
    if (--missing_ > 0) return;
    last_ = now;
    // wait() keeps the batch's own thread from the completions.
    for (const auto& completion : completions_) {
      auto delta = completion->try_take();
      if (delta && status_.ok()) status_ = take_in(std::move(*delta), times_);
    }
    times_.tokens_at_last_first_token = times_.output_tokens;
    bell_.notify_one();
  }
  // Errors: a request that failed.
  Status wait() {
    std::unique_lock lock(mutex_);
    bell_.wait(lock, [&] { return missing_ == 0; });
    return status_;
  }
  // After wait().
  Clock::time_point first() const { return first_; }
  Clock::time_point last() const { return last_; }

 private:
  Completions& completions_;
  BatchTimes& times_;
  std::mutex mutex_;
  std::condition_variable bell_;
  size_t missing_;
  std::vector<bool> told_;
  Status status_;
  Clock::time_point first_;
  Clock::time_point last_;
};

Result<BatchTimes> run_batch(engine::Engine& engine, const std::vector<std::vector<TokenId>>& prompts,
                             const SamplingParams& params, const std::vector<std::string>& adapters,
                             std::optional<double>& process_seconds_at_first_token) {
  BatchTimes times;
  FirstTokens::Completions completions;
  const Clock::time_point start = Clock::now();
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string adapter = adapters.empty() ? "" : adapters[i % adapters.size()];
    QUIRE_ASSIGN_OR_RETURN(auto completion, engine::Completion::start_one(
                                                engine, {.prompt = prompts[i], .params = params, .adapter = adapter}));
    completions.push_back(std::move(completion));
  }
  const auto first_tokens = std::make_shared<FirstTokens>(completions, times);
  for (size_t i = 0; i < completions.size(); ++i) {
    completions[i]->on_ready([first_tokens, i] { first_tokens->tell(i); });
  }
  QUIRE_RETURN_IF_ERROR(first_tokens->wait());
  if (!process_seconds_at_first_token) {
    process_seconds_at_first_token = seconds_since_process_start() - seconds(Clock::now() - first_tokens->first());
  }
  for (const auto& completion : completions) {
    while (!completion->finished()) QUIRE_RETURN_IF_ERROR(take_in(completion->take(), times));
  }
  times.end = seconds(Clock::now() - start);
  times.first_token = seconds(first_tokens->first() - start);
  times.last_first_token = seconds(first_tokens->last() - start);
  return times;
}

}  // namespace

Status validate(const LatencyOptions& options) {
  const auto positive = [](int64_t value, std::string_view flag, int64_t least) -> Status {
    if (value >= least) return {};
    return invalid_argument("{} is {}; it must be at least {}", flag, value, least);
  };
  QUIRE_RETURN_IF_ERROR(positive(options.input_len, "--input-len", 1));
  QUIRE_RETURN_IF_ERROR(positive(options.output_len, "--output-len", 1));
  QUIRE_RETURN_IF_ERROR(positive(options.batch_size, "--batch-size", 1));
  QUIRE_RETURN_IF_ERROR(positive(options.num_iters_warmup, "--num-iters-warmup", 0));
  return positive(options.num_iters, "--num-iters", 1);
}

Result<std::vector<LatencyOptions>> latency_cases(const LatencyOptions& common, const std::string& cases) {
  std::vector<LatencyOptions> all;
  for (size_t begin = 0; begin <= cases.size();) {
    const size_t end = std::min(cases.find(',', begin), cases.size());
    const std::string_view one = std::string_view(cases).substr(begin, end - begin);
    LatencyOptions options = common;
    int64_t* const numbers[] = {&options.batch_size, &options.input_len, &options.output_len, &options.num_iters};
    size_t count = 0;
    bool right = true;
    const char* at = one.data();
    const char* const last = one.data() + one.size();
    while (right && count < std::size(numbers)) {
      const auto [rest, error] = std::from_chars(at, last, *numbers[count]);
      right = error == std::errc() && rest != at;
      ++count;
      at = rest;
      if (at == last || *at != 'x') break;
      ++at;
    }
    if (!right || at != last || count < 3) {
      return invalid_argument("--cases: \"{}\" is no BATCHxINPUTxOUTPUT or BATCHxINPUTxOUTPUTxITERATIONS", one);
    }
    if (Status status = validate(options); !status.ok())
      return std::move(status).with_prefix(fmt::format("--cases: \"{}\": ", one));
    all.push_back(options);
    begin = end + 1;
  }
  return all;
}

std::string case_name(const LatencyOptions& options) {
  return fmt::format("{}x{}x{}{}", options.batch_size, options.input_len, options.output_len,
                     options.adapters.empty() ? "" : "_adapted");
}

double prefill_tokens_per_second(const BatchTimes& times, int64_t prompt_tokens) {
  return static_cast<double>(prompt_tokens) / times.last_first_token;
}

std::optional<double> decode_tokens_per_second(const BatchTimes& times) {
  const int64_t tokens = times.output_tokens - times.tokens_at_last_first_token;
  const double time = times.end - times.last_first_token;
  if (tokens <= 0 || time <= 0) return std::nullopt;
  return static_cast<double>(tokens) / time;
}

Result<LatencyResult> run_latency(engine::Engine& engine, const LatencyOptions& options,
                                  const std::function<void(const std::string&)>& report) {
  QUIRE_RETURN_IF_ERROR(validate(options));
  if (engine.max_model_len() < options.input_len + options.output_len) {
    return invalid_argument(
        "--input-len and --output-len make {} tokens; the engine's longest sequence has {} (--max-model-len)",
        options.input_len + options.output_len, engine.max_model_len());
  }
  SamplingParams params;
  params.temperature = options.temperature;
  params.repetition_penalty = options.repetition_penalty;
  params.max_tokens = static_cast<int32_t>(options.output_len);
  params.ignore_eos = true;
  params.detokenize = !options.disable_detokenize;

  const PromptMaker maker = PromptMaker::of_ids(engine.model().vocab_size, engine.tokenizer());
  std::mt19937_64 random(options.seed);
  std::optional<double> process_seconds;
  LatencyResult result;
  const int64_t total = options.num_iters_warmup + options.num_iters;
  SpeculationCounts before = speculation_of(engine.stats());
  for (int64_t i = 0; i < total; ++i) {
    if (i == options.num_iters_warmup) before = speculation_of(engine.stats());
    // New prompts each time: no cached prefix is ever met.
    std::vector<std::vector<TokenId>> prompts;
    for (int64_t p = 0; p < options.batch_size; ++p) prompts.push_back(maker.random_tokens(options.input_len, random));
    QUIRE_ASSIGN_OR_RETURN(const BatchTimes times,
                           run_batch(engine, prompts, params, options.adapters, process_seconds));
    const bool is_warmup = i < options.num_iters_warmup;
    if (!is_warmup) result.iterations.push_back(times);
    report(fmt::format("{} {}/{}: {:.3f} s", is_warmup ? "warm-up" : "iteration",
                       is_warmup ? i + 1 : i + 1 - options.num_iters_warmup,
                       is_warmup ? options.num_iters_warmup : options.num_iters, times.end));
  }
  result.start_to_first_token_seconds = process_seconds.value_or(0);
  result.speculation = speculation_of(engine.stats()).since(before);
  result.decode_steps = decode_steps(engine.flight_recorder(), options.batch_size);
  return result;
}

namespace {

struct Figures {
  std::vector<double> latencies;
  std::vector<double> first_tokens;  // the prefill's times
  std::vector<double> prefill;
  std::vector<double> decode;
  int64_t cached_tokens = 0;
};

Figures figures_of(const LatencyOptions& options, const LatencyResult& result) {
  Figures all;
  for (const BatchTimes& times : result.iterations) {
    all.latencies.push_back(times.end);
    all.first_tokens.push_back(times.last_first_token);
    all.prefill.push_back(prefill_tokens_per_second(times, options.batch_size * options.input_len));
    if (const auto speed = decode_tokens_per_second(times)) all.decode.push_back(*speed);
    all.cached_tokens += times.cached_tokens;
  }
  return all;
}

}  // namespace

boost::json::object latency_json(const LatencyOptions& options, const LatencyResult& result, const std::string& model) {
  const Figures all = figures_of(options, result);
  boost::json::object percentiles;
  for (const double percent : kPercents) {
    percentiles[percent_name(percent)] = figure(percentile(all.latencies, percent));
  }
  boost::json::object json{
      {"model_id", model},
      {"avg_latency", figure(mean(all.latencies))},
      {"latencies", figures(all.latencies)},
      {"percentiles", percentiles},
      {"batch_size", options.batch_size},
      {"input_len", options.input_len},
      {"output_len", options.output_len},
      {"time_to_first_token", figure(median(all.first_tokens))},
      {"times_to_first_token", figures(all.first_tokens)},
      {"prefill_tokens_per_second", figure(median(all.prefill))},
      {"prefill_tokens_per_second_list", figures(all.prefill)},
      {"decode_tokens_per_second", all.decode.empty() ? boost::json::value() : figure(median(all.decode))},
      {"decode_tokens_per_second_list", figures(all.decode)},
      {"decode_steps", decode_steps_json(result.decode_steps)},
      {"start_to_first_token_seconds", figure(result.start_to_first_token_seconds)},
      {"cached_tokens", all.cached_tokens},
      {"resident_memory_bytes", resident_memory()}};
  for (auto& [key, value] : speculation_json(result.speculation)) json[key] = std::move(value);
  return json;
}

std::string latency_table(const LatencyOptions& options, const LatencyResult& result) {
  const Figures all = figures_of(options, result);
  std::string table = fmt::format("Avg latency: {} seconds\n", mean(all.latencies));
  for (const double percent : kPercents) {
    table += fmt::format("{}% percentile latency: {} seconds\n", percent, percentile(all.latencies, percent));
  }
  table += fmt::format("Prefill: {:.1f} tok/s (median; {} prompts of {} tokens in {:.4f} s)\n", median(all.prefill),
                       options.batch_size, options.input_len, median(all.first_tokens));
  if (!all.decode.empty()) {
    table += fmt::format("Decode: {:.1f} tok/s (median), {:.1f} a sequence\n", median(all.decode),
                         median(all.decode) / static_cast<double>(options.batch_size));
  }
  table += decode_steps_line(result.decode_steps) + speculation_table(result.speculation);
  table += fmt::format("Start to first token: {:.2f} s\n", result.start_to_first_token_seconds);
  return table;
}

}  // namespace quire::bench
