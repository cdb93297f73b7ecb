#include "server/token_text.h"

#include <algorithm>

#include <fmt/format.h>

#include "server/json_text.h"
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

std::string ids_text(std::span<const TokenId> ids) {
  std::string out = "[";
  append_json_list(out, ids, [&](TokenId id) { append_json(out, id); });
  out += ']';
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

void TokenText::append_chat_fields(const TokenLogprob& token, std::string& out) const {
  out += "\"token\":";
  append_json(out, spelling(token.id));
  out += ",\"logprob\":";
  append_json(out, finite_logprob(token.logprob));
  out += ",\"bytes\":";
  if (tokenizer_ == nullptr) {
    out += "null";
    return;
  }
  out += '[';
  append_json_list(out, tokenizer_->token_bytes(token.id),
                   [&](char byte) { append_json(out, int{static_cast<unsigned char>(byte)}); });
  out += ']';
}

void TokenText::append_chat_logprobs(std::span<const PositionLogprobs> positions, int32_t num_alternatives,
                                     std::string& out) const {
  out += '[';
  append_json_list(out, positions, [&](const PositionLogprobs& position) {
    out += '{';
    append_chat_fields(position.chosen, out);
    out += ",\"top_logprobs\":[";
    append_json_list(out, alternatives(position, num_alternatives), [&](const TokenLogprob& other) {
      out += '{';
      append_chat_fields(other, out);
      out += '}';
    });
    out += "]}";
  });
  out += ']';
}

void TokenText::append_prompt_logprobs(std::span<const PositionLogprobs> positions, std::string& out) const {
  const auto entry = [&](const TokenLogprob& token) {
    out += '"';
    append_json(out, token.id);
    out += "\":{\"logprob\":";
    append_json(out, finite_logprob(token.logprob));
    out += ",\"rank\":";
    append_json(out, token.rank);
    out += ",\"decoded_token\":";
    append_json(out, spelling(token.id));
    out += '}';
  };
  out += "[null";
  for (const PositionLogprobs& position : positions) {
    out += ",{";
    entry(position.chosen);
    for (const TokenLogprob& other : position.top) {
      if (other.id == position.chosen.id) continue;  // a name is there once
      out += ',';
      entry(other);
    }
    out += '}';
  }
  out += ']';
}

}  // namespace quire::server
