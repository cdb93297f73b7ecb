#include "server/answer.h"

#include "base/check.h"

namespace quire::server {

Usage ChoiceState::usage() const {
  return {.prompt_tokens = static_cast<int64_t>(prompt->prompt.ids.size()),
          .cached_tokens = prompt->num_cached_tokens.value_or(0),
          .completion_tokens = num_tokens,
          .reasoning_tokens = num_reasoning_tokens,
          .accepted_prediction_tokens = num_predicted_tokens,
          .rejected_prediction_tokens = num_mispredicted_tokens};
}

Answer::Answer(std::vector<PreparedPrompt> prepared, size_t num_choices) {
  QUIRE_CHECK(!prepared.empty() && num_choices % prepared.size() == 0);
  for (PreparedPrompt& prompt : prepared) prompts.push_back({.prompt = std::move(prompt)});
  const size_t n = num_choices / prompts.size();
  for (size_t i = 0; i < num_choices; ++i) {
    choices.push_back({.index = static_cast<int32_t>(i), .prompt = &prompts[i / n]});
  }
}

Usage Answer::usage() const {
  Usage all;
  for (const PromptState& state : prompts) {
    all.prompt_tokens += static_cast<int64_t>(state.prompt.ids.size());
    all.cached_tokens += state.num_cached_tokens.value_or(0);
  }
  for (const ChoiceState& choice : choices) {
    all.completion_tokens += choice.num_tokens;
    all.reasoning_tokens += choice.num_reasoning_tokens;
    all.accepted_prediction_tokens += choice.num_predicted_tokens;
    all.rejected_prediction_tokens += choice.num_mispredicted_tokens;
  }
  return all;
}

}  // namespace quire::server
