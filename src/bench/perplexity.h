// How well a model predicts a text, as llama.cpp's tool of that name measures it, so that formats of one model can be
// compared with each other and with its figures.
//
// The text's tokens, the token that a text begins with first, are cut into windows of `window`, what is left over at
// the end is not read. Each window is read by itself; where texts begin with a special token its first token is
// replaced by that. Scored are the tokens of its second half, which all have half a window or more before them.
// Perplexity is e to the mean of their negative log-probabilities.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"
#include "quire/llm.h"
#include "text/tokenizer.h"

namespace quire::bench {

struct PerplexityOptions {
  std::string text_path;     // UTF-8
  int64_t window = 512;      // tokens
  int64_t most_windows = 0;  // 0: all of the text
};

struct TextWindows {
  std::vector<std::vector<TokenId>> windows;
  int64_t text_tokens = 0;
};

// Errors: not_found; invalid_argument for a text of less than one window, a window of less than 4 tokens.
Result<TextWindows> cut_text(const PerplexityOptions& options, const text::Tokenizer& tokenizer);

struct PerplexityResult {
  double perplexity = 0;
  double error = 0;  // standard error of the perplexity, from the spread of the log-probabilities
  double mean_logprob = 0;
  int64_t scored_tokens = 0;
  int64_t read_tokens = 0;
  double elapsed_time = 0;  // seconds
};

// `report` is told of each few windows. Errors: those of LLM::generate(); a request that fails.
Result<PerplexityResult> run_perplexity(LLM& llm, const TextWindows& text,
                                        const std::function<void(const std::string&)>& report);

boost::json::object perplexity_json(const PerplexityOptions& options, const PerplexityResult& result,
                                    const std::string& model);
std::string perplexity_table(const PerplexityResult& result);

}  // namespace quire::bench
