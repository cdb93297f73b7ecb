// Tokens and their log-probabilities as OpenAI's JSON.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <boost/json.hpp>

#include "text/tokenizer.h"
#include "types/ids.h"
#include "types/step_plan.h"

namespace quire::server {

class TokenText {
 public:
  // tokenizer: may be nullptr, else outlives this. by_id: tokens are spelled "token_id:7", as they are without one.
  TokenText(const text::Tokenizer* tokenizer, bool by_id) : tokenizer_(tokenizer), by_id_(by_id) {}

  std::string spelling(TokenId id) const;
  // {token, logprob, bytes, top_logprobs: [...]} a position, with so many alternatives; -1: all that came.
  boost::json::array chat_logprobs(std::span<const PositionLogprobs> positions, int32_t num_alternatives) const;
  // The same, as text.
  void append_chat_logprobs(std::span<const PositionLogprobs> positions, int32_t num_alternatives,
                            std::string& out) const;
  // [null, {"id": {logprob, rank, decoded_token}}, ...], one a prompt token; as text, for there may be many of them.
  void append_prompt_logprobs(std::span<const PositionLogprobs> positions, std::string& out) const;

 private:
  boost::json::object chat_entry(const TokenLogprob& token) const;
  void append_chat_fields(const TokenLogprob& token, std::string& out) const;

  const text::Tokenizer* tokenizer_;
  bool by_id_;
};

// JSON has no infinity: not under -9999.
double finite_logprob(float logprob);
// What was asked for of the alternatives that came.
std::span<const TokenLogprob> alternatives(const PositionLogprobs& position, int32_t count);
std::string ids_text(std::span<const TokenId> ids);  // "[1,2]"

}  // namespace quire::server
