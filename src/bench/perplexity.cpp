#include "bench/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>

#include "base/named_file.h"
#include "bench/report.h"

namespace quire::bench {
namespace {

constexpr size_t kWindowsAtOnce = 8;

// Sums of what is scored.
struct Scores {
  double sum = 0;  // of negative log-probabilities
  double squares = 0;
  int64_t count = 0;

  void add(double logprob) {
    sum -= logprob;
    squares += logprob * logprob;
    ++count;
  }
  double perplexity() const { return std::exp(sum / static_cast<double>(count)); }
  double error() const {
    if (count < 2) return 0;
    const double mean = sum / static_cast<double>(count);
    const double variance = std::max(squares / static_cast<double>(count) - mean * mean, 0.0);
    return perplexity() * std::sqrt(variance / static_cast<double>(count - 1));
  }
};

Status score(const RequestOutput& output, Scores& scores) {
  if (!output.error.ok()) return output.error;
  const size_t length = output.prompt_token_ids.size();
  if (output.prompt_logprobs.size() + 1 != length) {
    return internal_error("{} log-probabilities of a window of {} tokens", output.prompt_logprobs.size(), length);
  }
  // The entry before a token is its own: the first token has none.
  for (size_t i = length / 2; i < length - 1; ++i) scores.add(output.prompt_logprobs[i].chosen.logprob);
  return {};
}

}  // namespace

Result<TextWindows> cut_text(const PerplexityOptions& options, const text::Tokenizer& tokenizer) {
  if (options.window < 4) return invalid_argument("--window {}: expected at least 4 tokens", options.window);
  if (options.most_windows < 0) return invalid_argument("--num-windows {}: expected 0 or more", options.most_windows);
  if (Status status = check_file(options.text_path, FileUse::kReadOnce); !status.ok()) {
    return std::move(status).with_prefix("--text: ");
  }
  std::ifstream file(options.text_path, std::ios::binary);
  if (!file) return not_found("--text {}: cannot be read, expected a file of plain text", options.text_path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::vector<TokenId> ids = tokenizer.encode(text, /*add_special_tokens=*/true);
  const std::vector<TokenId> bare = tokenizer.encode("a", /*add_special_tokens=*/false);
  const std::vector<TokenId> framed = tokenizer.encode("a", /*add_special_tokens=*/true);
  const bool begins_specially = framed.size() > bare.size() && framed.front() != bare.front();
  TextWindows out{.windows = {}, .text_tokens = std::ssize(ids)};
  const auto window = static_cast<size_t>(options.window);
  size_t count = ids.size() / window;
  if (options.most_windows > 0) count = std::min(count, static_cast<size_t>(options.most_windows));
  for (size_t i = 0; i < count; ++i) {
    const auto begin = ids.begin() + static_cast<ptrdiff_t>(i * window);
    out.windows.emplace_back(begin, begin + options.window);
    if (begins_specially) out.windows.back().front() = framed.front();
  }
  if (!out.windows.empty()) return out;
  return invalid_argument("--text {}: {} tokens, expected a window of {} (--window) at least", options.text_path,
                          ids.size(), options.window);
}

Result<PerplexityResult> run_perplexity(LLM& llm, const TextWindows& text,
                                        const std::function<void(const std::string&)>& report) {
  SamplingParams params;
  params.max_tokens = 1;
  params.temperature = 0;
  params.prompt_logprobs = 0;
  params.detokenize = false;
  const auto start = std::chrono::steady_clock::now();
  Scores scores;
  PerplexityResult result;
  for (size_t begin = 0; begin < text.windows.size(); begin += kWindowsAtOnce) {
    const size_t end = std::min(begin + kWindowsAtOnce, text.windows.size());
    std::vector<Prompt> prompts;
    for (size_t i = begin; i < end; ++i) {
      prompts.emplace_back(text.windows[i]);
      result.read_tokens += std::ssize(text.windows[i]);
    }
    QUIRE_ASSIGN_OR_RETURN(const auto outputs, llm.generate(prompts, params, {.progress = false, .lora = {}}));
    for (const RequestOutput& output : outputs) QUIRE_RETURN_IF_ERROR(score(output, scores));
    report(fmt::format("window {} of {}: perplexity {:.4f}", end, text.windows.size(), scores.perplexity()));
  }
  result.elapsed_time = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.perplexity = scores.perplexity();
  result.error = scores.error();
  result.mean_logprob = -scores.sum / static_cast<double>(scores.count);
  result.scored_tokens = scores.count;
  return result;
}

boost::json::object perplexity_json(const PerplexityOptions& options, const PerplexityResult& result,
                                    const std::string& model) {
  return {{"model_id", model},
          {"text", options.text_path},
          {"window", options.window},
          {"perplexity", figure(result.perplexity)},
          {"perplexity_error", figure(result.error)},
          {"mean_logprob", figure(result.mean_logprob)},
          {"scored_tokens", result.scored_tokens},
          {"total_tokens", result.read_tokens},
          {"elapsed_time", figure(result.elapsed_time)},
          {"tokens_per_second", figure(static_cast<double>(result.read_tokens) / result.elapsed_time)}};
}

std::string perplexity_table(const PerplexityResult& result) {
  return fmt::format(
      "Perplexity: {:.4f} +/- {:.4f}\n"
      "Scored tokens:            {}\n"
      "Tokens read:              {}, {:.1f} a second\n",
      result.perplexity, result.error, result.scored_tokens, result.read_tokens,
      static_cast<double>(result.read_tokens) / result.elapsed_time);
}

}  // namespace quire::bench
