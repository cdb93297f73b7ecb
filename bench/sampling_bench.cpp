// What a row of logits costs to sample, by method and vocabulary: microseconds a row, one thread.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "sampling/sequence_sampler.h"

namespace quire::sampling {
namespace {

constexpr size_t kPrompt = 1000;

// Rows as of a language model: a few likely tokens above a wide bell.
std::vector<std::vector<float>> random_rows(size_t vocab_size) {
  std::mt19937 random(7);
  std::normal_distribution<float> bell(0.0f, 2.0f);
  std::exponential_distribution<float> peak(0.25f);
  std::vector<std::vector<float>> rows(8, std::vector<float>(vocab_size));
  for (std::vector<float>& row : rows) {
    for (float& logit : row) logit = bell(random);
    for (int i = 0; i < 20; ++i) row[random() % vocab_size] += 8.0f + peak(random);
  }
  return rows;
}

std::vector<TokenId> random_prompt(size_t vocab_size) {
  std::mt19937 random(8);
  std::vector<TokenId> prompt(kPrompt);
  for (TokenId& id : prompt) id = static_cast<TokenId>(random() % std::min<size_t>(vocab_size, 400));
  return prompt;
}

void sample_rows(benchmark::State& state, const SamplingParams& params) {
  const auto vocab_size = static_cast<size_t>(state.range(0));
  const std::vector<std::vector<float>> rows = random_rows(vocab_size);
  const std::vector<TokenId> prompt = random_prompt(vocab_size);
  const auto shared = std::make_shared<const SamplingParams>(params);
  SequenceSampler sampler(shared, prompt, 1, state.range(0), {});
  SamplingScratch scratch;
  std::vector<float> logits(vocab_size);
  size_t next = 0;
  for (auto _ : state) {
    state.PauseTiming();  // the copy is not the sampler's
    logits = rows[next++ % rows.size()];
    // An answer does not grow without end.
    if (sampler.num_sampled() == 500) sampler = SequenceSampler(shared, prompt, next, state.range(0), {});
    state.ResumeTiming();
    benchmark::DoNotOptimize(sampler.sample(logits, scratch));
  }
}

void beam_rows(benchmark::State& state) {
  const auto vocab_size = static_cast<size_t>(state.range(0));
  const std::vector<std::vector<float>> rows = random_rows(vocab_size);
  SequenceSampler sampler(std::make_shared<const SamplingParams>(), {}, 1, state.range(0), {});
  SamplingScratch scratch;
  std::vector<float> logits(vocab_size);
  size_t next = 0;
  for (auto _ : state) {
    state.PauseTiming();
    logits = rows[next++ % rows.size()];
    state.ResumeTiming();
    benchmark::DoNotOptimize(sampler.beam_candidates(logits, 8, scratch));
  }
}

void add(const std::string& name, void (*change)(SamplingParams&)) {
  SamplingParams params;
  change(params);
  benchmark::RegisterBenchmark(name.c_str(), [params](benchmark::State& state) { sample_rows(state, params); })
      ->Arg(49152)
      ->Arg(128256)
      ->Unit(benchmark::kMicrosecond);
}

[[maybe_unused]] const bool registered = [] {
  add("greedy", [](SamplingParams& p) { p.temperature = 0.0f; });
  add("temperature", [](SamplingParams& p) { p.temperature = 0.7f; });
  add("top_k", [](SamplingParams& p) { p.top_k = 50; });
  add("top_p", [](SamplingParams& p) { p.top_p = 0.9f; });
  add("top_k+top_p", [](SamplingParams& p) { p.top_k = 50, p.top_p = 0.9f; });
  add("min_p", [](SamplingParams& p) { p.min_p = 0.05f; });
  add("penalties",
      [](SamplingParams& p) { p.repetition_penalty = 1.1f, p.frequency_penalty = p.presence_penalty = 0.5f; });
  add("allowed_token_ids", [](SamplingParams& p) { p.allowed_token_ids = {1, 2, 3, 4}; });
  add("bad_words", [](SamplingParams& p) { p.bad_words_ids.assign(20, {1, 2, 3}); });
  add("dry", [](SamplingParams& p) { p.dry_multiplier = 0.8f; });
  add("top_n_sigma", [](SamplingParams& p) { p.top_n_sigma = 1.0f; });
  add("dynatemp", [](SamplingParams& p) { p.dynatemp_range = 0.5f; });
  add("typical_p", [](SamplingParams& p) { p.typical_p = 0.9f; });
  add("top_k+typical_p", [](SamplingParams& p) { p.top_k = 50, p.typical_p = 0.9f; });
  add("xtc", [](SamplingParams& p) { p.xtc_probability = 1.0f; });
  add("mirostat_1", [](SamplingParams& p) { p.mirostat = 1; });
  add("mirostat_2", [](SamplingParams& p) { p.mirostat = 2; });
  add("logprobs_20", [](SamplingParams& p) { p.temperature = 0.0f, p.logprobs = 20; });
  benchmark::RegisterBenchmark("beam_candidates_8", beam_rows)->Arg(49152)->Arg(128256)->Unit(benchmark::kMicrosecond);
  return true;
}();

}  // namespace
}  // namespace quire::sampling
