#include "server/answer_size.h"

#include <algorithm>
#include <optional>

namespace quire::server {

namespace {

// Of one token with its log-probability: names, digits, spelling, bytes of the spelling.
constexpr int64_t kEntryText = 128;
constexpr int64_t kIdText = 8;

}  // namespace

AnswerSize answer_size(const SamplingParams& params, const AnswerContext& context,
                       std::span<const PreparedPrompt> prompts, const engine::CostFacts& facts) {
  const auto entries = [vocab_size = facts.vocab_size](const std::optional<int32_t>& alternatives) {
    if (!alternatives) return int64_t{0};
    return 1 + (*alternatives < 0 ? vocab_size : std::min<int64_t>(*alternatives, vocab_size));
  };
  const int64_t n = params.use_beam_search ? params.n : params.num_sequences();
  AnswerSize size;
  for (const PreparedPrompt& prompt : prompts) {
    const auto length = static_cast<int64_t>(prompt.ids.size());
    int64_t shared = static_cast<int64_t>(prompt.echo.size());
    if (context.return_token_ids) shared += length * kIdText;
    if (context.prompt_logprobs_asked) shared += length * entries(params.prompt_logprobs) * kEntryText;
    if (context.echo) shared += length * entries(context.num_logprobs) * kEntryText;
    const int64_t each =
        engine::most_answer_tokens(params, length, facts.max_model_len) * entries(context.num_logprobs);
    size.held += shared + n * each * kEntryText + engine::cost_of(params, length, facts).heap_bytes;
    size.text += n * (shared + each * kEntryText);
  }
  return size;
}

}  // namespace quire::server
