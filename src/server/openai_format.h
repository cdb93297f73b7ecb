// Answers as OpenAI's JSON. A streamed answer is a row of parts; a whole one is all of them put together and written by
// the same code.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "engine/output.h"
#include "text/tokenizer.h"
#include "types/ids.h"

namespace quire::server {

struct PreparedPrompt {
  std::vector<TokenId> ids;
  std::string echo;  // text to show before the answer: the prompt, or what the answer continues
};

// What every part of an answer needs to know of its request.
struct AnswerContext {
  bool chat = false;
  bool stream = false;
  std::string id;  // "chatcmpl-..."
  std::string model;
  int64_t created = 0;                         // Unix seconds
  const text::Tokenizer* tokenizer = nullptr;  // nullptr: tokens are spelled by their ids
  std::optional<int32_t> num_logprobs;         // asked for; the alternatives beside the chosen token
  bool prompt_logprobs_asked = false;          // as a field of their own
  bool echo = false;                           // completions: the prompt's tokens are part of the answer
  bool skip_special_tokens = true;
  bool return_token_ids = false;
  bool tokens_as_token_ids = false;
  bool usage_in_chunks = false;  // OpenAI sends "usage": null in every chunk but the last
};

// A choice and how far it is written.
struct ChoiceProgress {
  int32_t index = 0;
  const PreparedPrompt* prompt = nullptr;
  const std::vector<PositionLogprobs>* prompt_logprobs = nullptr;  // of the prompt, whichever choice brought them
  bool begun = false;                                              // something of it is written
  int64_t text_offset = 0;  // characters that the tokens written so far stand for
  int64_t num_tokens = 0;   // of the answer
};

class AnswerFormat {
 public:
  explicit AnswerFormat(AnswerContext context) : context_(std::move(context)) {}
  const AnswerContext& context() const { return context_; }

  // The part of a choice that `delta` is: a chunk's choice, or all of it in a whole answer.
  boost::json::object choice(ChoiceProgress& progress, const engine::OutputDelta& delta) const;
  // The first chunk of a chat's choice: who speaks.
  boost::json::object opening_choice(const ChoiceProgress& progress) const;
  // Around choices: a chunk or the whole answer. usage: null where there is none.
  boost::json::object envelope(boost::json::array choices, boost::json::value usage) const;

  // [null, {"id": {logprob, rank, decoded_token}}, ...], one a prompt token.
  boost::json::value prompt_logprobs(std::span<const PositionLogprobs> positions) const;

 private:
  boost::json::value chat_logprobs(const engine::OutputDelta& delta) const;
  boost::json::value completion_logprobs(ChoiceProgress& progress, const engine::OutputDelta& delta) const;
  std::string token_text(TokenId id) const;
  int64_t characters(TokenId id) const;

  AnswerContext context_;
};

boost::json::array ids_array(std::span<const TokenId> ids);
boost::json::object usage_object(int64_t prompt_tokens, int64_t completion_tokens, int64_t cached_tokens);

// "data: ...\n\n"
std::string sse_event(const boost::json::object& payload);
inline constexpr const char* kSseDone = "data: [DONE]\n\n";

}  // namespace quire::server
