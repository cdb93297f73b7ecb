#include "server/token_text.h"

#include <algorithm>

#include <fmt/format.h>

#include "server/utf8.h"

namespace quire::server {
namespace json = boost::json;

double finite_logprob(float logprob) {
  constexpr float kFloor = -9999.0f;
  return logprob > kFloor ? logprob : kFloor;
}

std::span<const TokenLogprob> alternatives(const PositionLogprobs& position, int32_t count) {
  if (count < 0) return position.top;  // the whole vocabulary
  return std::span(position.top).first(std::min(position.top.size(), static_cast<size_t>(count)));
}

json::array ids_array(std::span<const TokenId> ids) {
  json::array out;
  out.reserve(ids.size());
  for (TokenId id : ids) out.emplace_back(id);
  return out;
}

std::string TokenText::spelling(TokenId id) const {
  if (by_id_ || tokenizer_ == nullptr) return fmt::format("token_id:{}", id);
  std::string bytes = tokenizer_->token_bytes(id);
  return is_utf8(bytes) ? bytes : tokenizer_->decode(std::span(&id, 1), /*skip_special_tokens=*/false);
}

json::object TokenText::chat_entry(const TokenLogprob& token) const {
  json::object out{{"token", spelling(token.id)}, {"logprob", finite_logprob(token.logprob)}, {"bytes", nullptr}};
  if (tokenizer_ != nullptr) {
    json::array bytes;
    for (char byte : tokenizer_->token_bytes(token.id)) bytes.emplace_back(static_cast<unsigned char>(byte));
    out["bytes"] = std::move(bytes);
  }
  return out;
}

json::array TokenText::chat_logprobs(std::span<const PositionLogprobs> positions, int32_t num_alternatives) const {
  json::array content;
  for (const PositionLogprobs& position : positions) {
    json::object token = chat_entry(position.chosen);
    json::array top;
    for (const TokenLogprob& other : alternatives(position, num_alternatives)) top.emplace_back(chat_entry(other));
    token["top_logprobs"] = std::move(top);
    content.emplace_back(std::move(token));
  }
  return content;
}

json::array TokenText::prompt_logprobs(std::span<const PositionLogprobs> positions) const {
  const auto entry = [this](const TokenLogprob& token) {
    return json::object{
        {"logprob", finite_logprob(token.logprob)}, {"rank", token.rank}, {"decoded_token", spelling(token.id)}};
  };
  json::array out{nullptr};
  for (const PositionLogprobs& position : positions) {
    json::object tokens;
    tokens.emplace(std::to_string(position.chosen.id), entry(position.chosen));
    for (const TokenLogprob& other : position.top) tokens.emplace(std::to_string(other.id), entry(other));
    out.emplace_back(std::move(tokens));
  }
  return out;
}

}  // namespace quire::server
