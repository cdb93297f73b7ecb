// One request's answer on its way out: what its writer (server/answer_writer.h) needs to know beside the pieces that
// come.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/output.h"
#include "text/tokenizer.h"
#include "types/ids.h"
#include "types/step_plan.h"

namespace quire::server {

struct PreparedPrompt {
  std::vector<TokenId> ids;
  std::string echo;     // text to show before the answer: the prompt, or what the answer continues
  bool thinks = false;  // it ends within the model's reasoning
  bool is_cut = false;  // far longer than the context: these are some of its tokens
};

// What was asked for of the answer, in whatever form it is written.
struct AnswerContext {
  std::string id;  // "chatcmpl-..."
  std::string model;
  int64_t created = 0;             // Unix seconds
  std::string system_fingerprint;  // of the build and the model; empty: not told
  std::string service_tier;        // that it was served in, where the request named one
  bool stream = false;
  const text::Tokenizer* tokenizer = nullptr;  // nullptr: tokens are spelled by their ids
  std::optional<int32_t> num_logprobs;         // asked for; the alternatives beside the chosen token
  bool prompt_logprobs_asked = false;          // as a field of their own
  bool echo = false;                           // completions: the prompt's tokens are part of the answer
  bool skip_special_tokens = true;
  bool return_token_ids = false;
  bool tokens_as_token_ids = false;
  bool include_reasoning = true;  // the reasoning is told, where the answer has some
  std::string role = "assistant";
  bool named_tool = false;        // a call of one function was asked for: its end is no "tool_calls"
  bool include_usage = false;     // a stream ends with the usage
  bool continuous_usage = false;  // and has it in every event
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, found in the prefix cache
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;  // of these
  // Of the request's prediction: tokens of the answer that were accepted from it, and such that were computed in vain.
  int64_t accepted_prediction_tokens = 0;
  int64_t rejected_prediction_tokens = 0;
};

// A prompt and what all its choices have in common; the first of them brings it.
struct PromptState {
  PreparedPrompt prompt;
  std::optional<int32_t> num_cached_tokens;
  std::vector<PositionLogprobs> logprobs;  // of the prompt, if asked for
  bool known = false;                      // the choice that brings them has said something
};

struct ChoiceState {
  int32_t index = 0;
  const PromptState* prompt = nullptr;
  int64_t num_tokens = 0;            // that came so far
  int64_t num_reasoning_tokens = 0;  // of these
  int64_t num_predicted_tokens = 0;  // of these, from the prediction
  int64_t num_mispredicted_tokens = 0;
  int64_t num_tool_calls = 0;  // begun so far
  Usage usage() const;
};

// Not to be copied or moved: choices point to prompts.
struct Answer {
  // n choices a prompt, in the order of the prompts.
  Answer(std::vector<PreparedPrompt> prepared, size_t num_choices);
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  std::vector<PromptState> prompts;
  std::vector<ChoiceState> choices;
  std::string kv_transfer_params;  // JSON, for who goes on from the prompt; empty: nobody asked
  Usage usage() const;
};

}  // namespace quire::server
