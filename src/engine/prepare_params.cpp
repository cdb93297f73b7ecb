#include "engine/prepare_params.h"

#include <algorithm>
#include <string>

#include "types/step_plan.h"

namespace quire::engine {
namespace {

// A word at the beginning of a text and after a space, where that gives other tokens of the same number (as vLLM).
void add_bad_word(const text::Tokenizer& tokenizer, const std::string& word, std::vector<std::vector<TokenId>>& ids) {
  const std::string bare = word.substr(std::min(word.find_first_not_of(' '), word.size()));
  std::vector<TokenId> at_start = tokenizer.encode(bare, /*add_special_tokens=*/false);
  std::vector<TokenId> after_space = tokenizer.encode(" " + bare, /*add_special_tokens=*/false);
  if (at_start.empty()) return;
  const bool differs =
      !after_space.empty() && after_space.front() != at_start.front() && after_space.size() == at_start.size();
  ids.push_back(std::move(at_start));
  if (differs) ids.push_back(std::move(after_space));
}

}  // namespace

Status find_words(const text::Tokenizer* tokenizer, const SamplingLimits& limits, SamplingParams& params) {
  if (!params.bad_words.empty()) {
    if (tokenizer == nullptr) {
      return invalid_argument("bad_words needs a tokenizer, and this engine runs without one").with_param("bad_words");
    }
    for (const std::string& word : params.bad_words) add_bad_word(*tokenizer, word, params.bad_words_ids);
    if (params.bad_words_ids.size() > static_cast<size_t>(limits.max_bad_words)) {
      return invalid_argument("bad_words become {} token sequences, more than the {} allowed.",
                              params.bad_words_ids.size(), limits.max_bad_words)
          .with_param("bad_words");
    }
  }
  if (params.dry_multiplier <= 0 || tokenizer == nullptr) return {};
  for (TokenId id = 0; id < tokenizer->vocab_size(); ++id) {
    const std::string bytes = tokenizer->token_bytes(id);
    const bool breaks = std::ranges::any_of(params.dry_sequence_breakers, [&](const std::string& breaker) {
      return !breaker.empty() && bytes.find(breaker) != std::string::npos;
    });
    if (breaks) params.dry_sequence_breaker_ids.push_back({id});
  }
  for (const std::string& breaker : params.dry_sequence_breakers) {
    std::vector<TokenId> ids = tokenizer->encode(breaker, /*add_special_tokens=*/false);
    if (ids.size() > 1) params.dry_sequence_breaker_ids.push_back(std::move(ids));
  }
  return {};
}

void truncate_prompt(int64_t max_model_len, const SamplingParams& params, std::vector<TokenId>& prompt) {
  if (!params.truncate_prompt_tokens) return;
  const int64_t answer = std::max(1, params.max_tokens.value_or(1));
  const int64_t keep = *params.truncate_prompt_tokens == -1 ? std::max<int64_t>(max_model_len - answer, 1)
                                                            : *params.truncate_prompt_tokens;
  const auto size = static_cast<int64_t>(prompt.size());
  if (size > keep) prompt.erase(prompt.begin(), prompt.begin() + (size - keep));
}

int64_t most_logprob_bytes(const SamplingParams& params, int64_t num_prompt_tokens, int64_t vocab_size,
                           int64_t max_model_len) {
  const auto entries = [vocab_size](const std::optional<int32_t>& alternatives) {
    return alternatives ? 1 + (*alternatives == -1 ? vocab_size : *alternatives) : int64_t{0};
  };
  const int64_t left = std::max<int64_t>(max_model_len - num_prompt_tokens, 0);
  const int64_t answer = std::min<int64_t>(params.max_tokens.value_or(static_cast<int32_t>(left)), left);
  const int64_t count =
      entries(params.prompt_logprobs) * num_prompt_tokens + entries(params.logprobs) * answer * params.num_sequences();
  return count * static_cast<int64_t>(sizeof(TokenLogprob));
}

}  // namespace quire::engine
