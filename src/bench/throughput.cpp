#include "bench/throughput.h"

#include <chrono>
#include <memory>

#include <fmt/format.h>

#include "bench/report.h"
#include "engine/output.h"

namespace quire::bench {
namespace {

using Clock = std::chrono::steady_clock;

Result<ThroughputResult> answer_all(engine::Engine& engine, const std::vector<Sample>& samples,
                                    const ThroughputOptions& options,
                                    const std::function<void(const std::string&)>& report) {
  ThroughputResult result{.num_requests = static_cast<int64_t>(samples.size())};
  const SpeculationCounts before = speculation_of(engine.stats());
  std::vector<std::unique_ptr<engine::Completion>> completions;
  const Clock::time_point start = Clock::now();
  for (const Sample& sample : samples) {
    SamplingParams params;
    params.temperature = options.temperature;
    params.max_tokens = static_cast<int32_t>(sample.output_len);
    params.ignore_eos = true;
    params.detokenize = !options.disable_detokenize;
    const size_t next = completions.size();
    const std::string adapter = options.adapters.empty() ? "" : options.adapters[next % options.adapters.size()];
    QUIRE_ASSIGN_OR_RETURN(
        auto completion,
        engine::Completion::start_one(engine, {.prompt = sample.prompt_ids, .params = params, .adapter = adapter}));
    completions.push_back(std::move(completion));
    result.prompt_tokens += sample.prompt_len();
  }
  const size_t reports = 20;
  for (size_t i = 0; i < completions.size(); ++i) {
    while (!completions[i]->finished()) {
      engine::OutputDelta delta = completions[i]->take();
      result.output_tokens += static_cast<int64_t>(delta.tokens.size());
      result.cached_tokens += delta.num_cached_tokens.value_or(0);
      if (delta.finish == FinishReason::kError) return std::move(delta.error);
      if (delta.finish == FinishReason::kAbort) return internal_error("the engine gave up a request");
    }
    if ((i + 1) * reports / completions.size() != i * reports / completions.size()) {
      report(fmt::format("{}/{} requests", i + 1, completions.size()));
    }
  }
  result.elapsed_time = std::chrono::duration<double>(Clock::now() - start).count();
  result.speculation = speculation_of(engine.stats()).since(before);
  return result;
}

}  // namespace

Result<ThroughputResult> run_throughput(engine::Engine& engine, const ThroughputOptions& options,
                                        const std::function<void(const std::string&)>& report) {
  const PromptMaker maker = PromptMaker::of_ids(engine.model().vocab_size, engine.tokenizer());
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Sample> samples, make_samples(options.dataset, maker, options.seed));
  if (options.num_warmups > 0) {
    DatasetOptions warmup = options.dataset;
    warmup.num_prompts = options.num_warmups;
    QUIRE_ASSIGN_OR_RETURN(const std::vector<Sample> first, make_samples(warmup, maker, options.seed + 1));
    QUIRE_ASSIGN_OR_RETURN(const ThroughputResult warm, answer_all(engine, first, options, [](const std::string&) {}));
    report(fmt::format("warm-up: {} requests in {:.2f} s", warm.num_requests, warm.elapsed_time));
    engine.reset_prefix_cache();
  }
  return answer_all(engine, samples, options, report);
}

boost::json::object throughput_json(const ThroughputResult& result, const std::string& model) {
  const auto rate = [&](int64_t count) { return figure(static_cast<double>(count) / result.elapsed_time); };
  boost::json::object json{{"model_id", model},
                           {"elapsed_time", figure(result.elapsed_time)},
                           {"num_requests", result.num_requests},
                           {"total_num_tokens", result.prompt_tokens + result.output_tokens},
                           {"requests_per_second", rate(result.num_requests)},
                           {"tokens_per_second", rate(result.prompt_tokens + result.output_tokens)},
                           {"output_tokens_per_second", rate(result.output_tokens)},
                           {"total_prompt_tokens", result.prompt_tokens},
                           {"total_output_tokens", result.output_tokens},
                           {"cached_prompt_tokens", result.cached_tokens}};
  for (auto& [key, value] : speculation_json(result.speculation)) json[key] = std::move(value);
  return json;
}

std::string throughput_table(const ThroughputResult& result) {
  const auto rate = [&](int64_t count) { return static_cast<double>(count) / result.elapsed_time; };
  return fmt::format(
      "Throughput: {:.2f} requests/s, {:.2f} total tokens/s, {:.2f} output tokens/s\n"
      "Total num prompt tokens:  {}\n"
      "Total num output tokens:  {}\n{}",
      rate(result.num_requests), rate(result.prompt_tokens + result.output_tokens), rate(result.output_tokens),
      result.prompt_tokens, result.output_tokens, speculation_table(result.speculation));
}

}  // namespace quire::bench
