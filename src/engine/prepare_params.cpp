#include "engine/prepare_params.h"

#include <algorithm>
#include <string>
#include <utility>

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

// Of a token's log-probability with `alternatives` beside it, the list of which is a piece of memory of its own.
int64_t bytes_of_position(int64_t alternatives) {
  constexpr int64_t kAllocation = 16;  // what the allocator adds and rounds up to
  const auto own = static_cast<int64_t>(sizeof(PositionLogprobs));
  if (alternatives == 0) return own;
  const auto list = alternatives * static_cast<int64_t>(sizeof(TokenLogprob));
  return own + (list + 2 * kAllocation - 1) / kAllocation * kAllocation;
}

}  // namespace

int64_t PreparedParams::heap_bytes() const {
  const auto of = [](const SamplingParams& params) {
    return static_cast<int64_t>(sizeof(SamplingParams)) + quire::heap_bytes(params);
  };
  return of(*first) + (others == first ? 0 : of(*others));
}

Status find_words(const text::Tokenizer* tokenizer, BreakerSets* breakers, const SamplingLimits& limits,
                  SamplingParams& params) {
  if (!params.bad_words.empty()) {
    if (tokenizer == nullptr) {
      return invalid_argument("bad_words needs a tokenizer, and this engine runs without one").with_param("bad_words");
    }
    const size_t most_tokens = size_t{16} * static_cast<size_t>(limits.max_bad_words);
    size_t num_tokens = 0;
    for (const std::string& word : params.bad_words) {
      const size_t begin = params.bad_words_ids.size();
      add_bad_word(*tokenizer, word, params.bad_words_ids);
      for (size_t i = begin; i < params.bad_words_ids.size(); ++i) num_tokens += params.bad_words_ids[i].size();
      const bool too_many = params.bad_words_ids.size() > static_cast<size_t>(limits.max_bad_words);
      if (too_many || num_tokens > most_tokens) break;
    }
    QUIRE_RETURN_IF_ERROR(check_bad_words_ids(params, limits));
  }
  if (params.dry_multiplier <= 0 || breakers == nullptr || params.dry_breakers != nullptr) return {};
  params.dry_breakers = breakers->get(params.dry_sequence_breakers);
  return {};
}

PreparedParams share_params(SamplingParams params, bool shows_logprobs) {
  PreparedParams prepared;
  prepared.shows_logprobs = shows_logprobs;
  prepared.first = std::make_shared<const SamplingParams>(std::move(params));
  prepared.others = prepared.first;
  if (prepared.first->num_sequences() > 1 && prepared.first->prompt_logprobs) {
    SamplingParams others = *prepared.first;
    others.prompt_logprobs.reset();
    prepared.others = std::make_shared<const SamplingParams>(std::move(others));
  }
  return prepared;
}

int64_t num_kept_tokens(int64_t max_model_len, const SamplingParams& params, int64_t num_prompt_tokens) {
  if (!params.truncate_prompt_tokens) return num_prompt_tokens;
  const int64_t answer = std::max(1, params.max_tokens.value_or(1));
  const int64_t keep = *params.truncate_prompt_tokens == -1 ? std::max<int64_t>(max_model_len - answer, 1)
                                                            : *params.truncate_prompt_tokens;
  return std::min(keep, num_prompt_tokens);
}

void truncate_prompt(int64_t max_model_len, const SamplingParams& params, std::vector<TokenId>& prompt) {
  const auto size = static_cast<int64_t>(prompt.size());
  prompt.erase(prompt.begin(), prompt.begin() + (size - num_kept_tokens(max_model_len, params, size)));
}

int64_t most_answer_tokens(const SamplingParams& params, int64_t num_prompt_tokens, int64_t max_model_len) {
  const int64_t left = std::max<int64_t>(max_model_len - num_prompt_tokens, 0);
  return params.max_tokens ? std::min<int64_t>(*params.max_tokens, left) : left;
}

LogprobBytes most_logprob_bytes(const SamplingParams& params, int64_t num_prompt_tokens, int64_t vocab_size,
                                int64_t max_model_len) {
  const auto each = [vocab_size](const std::optional<int32_t>& alternatives) {
    return alternatives
               ? bytes_of_position(*alternatives < 0 ? vocab_size : std::min<int64_t>(*alternatives, vocab_size))
               : int64_t{0};
  };
  const int64_t answer = most_answer_tokens(params, num_prompt_tokens, max_model_len);
  // At every step as many beams go on as there are, and as many answers at most are finished beside them.
  const int64_t chosen = params.use_beam_search ? 2 * int64_t{params.num_beams()} : params.num_sequences();
  return {.prompt = each(params.prompt_logprobs) * num_prompt_tokens,
          .answers = each(params.logprobs) * answer * chosen};
}

}  // namespace quire::engine
