// What the engines are asked: random prompts, prompts that begin alike, chats of ShareGPT. Names and defaults are those
// of vLLM's benchmarks. The same seed gives the same samples.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"
#include "types/ids.h"

namespace quire::bench {

struct Sample {
  std::string prompt;               // empty where prompts are made as token ids
  std::vector<TokenId> prompt_ids;  // without the tokens that a tokenizer puts around a text
  int64_t output_len = 0;           // tokens to be answered
  int64_t prompt_len() const { return static_cast<int64_t>(prompt_ids.size()); }
};

struct DatasetOptions {
  std::string name = "random";  // "random" | "sharegpt" | "prefix_repetition"
  std::string path;             // of the ShareGPT file
  int64_t num_prompts = 1000;

  int64_t random_input_len = 1024;  // without the shared prefix
  int64_t random_output_len = 128;
  double random_range_ratio = 0;  // [0, 1): lengths are uniform in [len * (1 - ratio), len * (1 + ratio)]
  int64_t random_prefix_len = 0;  // of all prompts

  std::optional<int64_t> sharegpt_output_len;  // unset: as long as the recorded answer

  int64_t prefix_repetition_prefix_len = 256;
  int64_t prefix_repetition_suffix_len = 256;
  int64_t prefix_repetition_num_prefixes = 10;
  int64_t prefix_repetition_output_len = 128;
};

// Errors: invalid_argument, naming the flag.
Status validate(const DatasetOptions& options);

// Random tokens, as ids or as a text that is encoded to exactly so many.
class PromptMaker {
 public:
  // Ids of a vocabulary; special ones of the tokenizer, where there is one, are left out. REQUIRES: vocab_size > 0.
  static PromptMaker of_ids(int64_t vocab_size, const text::Tokenizer* tokenizer);
  // Texts: of tokens that encode to themselves. Errors: unimplemented when the vocabulary has too few of them.
  static Result<PromptMaker> of_text(const text::Tokenizer& tokenizer);

  std::vector<TokenId> random_tokens(int64_t count, std::mt19937_64& random) const;
  // prompt_ids, and for texts the prompt: cut or drawn on until the text encodes to exactly as many tokens.
  Sample sample(std::vector<TokenId> ids, int64_t output_len, std::mt19937_64& random) const;

  const text::Tokenizer* tokenizer() const { return tokenizer_; }
  size_t num_tokens() const { return tokens_.size(); }  // different ones that may occur

 private:
  std::vector<TokenId> tokens_;
  const text::Tokenizer* tokenizer_ = nullptr;
  bool as_text_ = false;
};

// options.num_prompts samples. Errors: invalid_argument and not_found for files; sharegpt needs a tokenizer.
Result<std::vector<Sample>> make_samples(const DatasetOptions& options, const PromptMaker& maker, uint64_t seed);

}  // namespace quire::bench
