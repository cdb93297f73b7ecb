#include "server/openai_format.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "server/utf8.h"

namespace quire::server {
namespace json = boost::json;

namespace {

constexpr float kLogprobFloor = -9999.0f;  // JSON has no infinity

double finite(float logprob) {
  return logprob > kLogprobFloor ? logprob : kLogprobFloor;
}

json::value stop_reason(const engine::OutputDelta& delta) {
  if (const auto* text = std::get_if<std::string>(&delta.stop_reason)) return json::value(*text);
  if (const auto* id = std::get_if<TokenId>(&delta.stop_reason)) return json::value(*id);
  return nullptr;
}

// What was asked for of the alternatives that came.
std::span<const TokenLogprob> alternatives(const PositionLogprobs& position, int32_t count) {
  if (count < 0) return position.top;  // the whole vocabulary
  return std::span(position.top).first(std::min(position.top.size(), static_cast<size_t>(count)));
}

}  // namespace

std::string AnswerFormat::token_text(TokenId id) const {
  if (context_.tokens_as_token_ids || context_.tokenizer == nullptr) return fmt::format("token_id:{}", id);
  std::string bytes = context_.tokenizer->token_bytes(id);
  return is_utf8(bytes) ? bytes : context_.tokenizer->decode(std::span(&id, 1), /*skip_special_tokens=*/false);
}

int64_t AnswerFormat::characters(TokenId id) const {
  if (context_.tokenizer == nullptr) return 0;
  if (context_.skip_special_tokens && context_.tokenizer->is_special(id)) return 0;
  const std::string bytes = context_.tokenizer->token_bytes(id);
  return static_cast<int64_t>(bytes.size()) - std::count_if(bytes.begin(), bytes.end(), is_utf8_continuation);
}

json::value AnswerFormat::chat_logprobs(const engine::OutputDelta& delta) const {
  const auto entry = [this](const TokenLogprob& token) {
    json::object out{{"token", token_text(token.id)}, {"logprob", finite(token.logprob)}, {"bytes", nullptr}};
    if (context_.tokenizer != nullptr) {
      json::array bytes;
      for (char byte : context_.tokenizer->token_bytes(token.id)) bytes.emplace_back(static_cast<unsigned char>(byte));
      out["bytes"] = std::move(bytes);
    }
    return out;
  };
  json::array content;
  for (const PositionLogprobs& position : delta.logprobs) {
    json::object token = entry(position.chosen);
    json::array top;
    for (const TokenLogprob& other : alternatives(position, *context_.num_logprobs)) top.emplace_back(entry(other));
    token["top_logprobs"] = std::move(top);
    content.emplace_back(std::move(token));
  }
  return json::object{{"content", std::move(content)}};
}

json::value AnswerFormat::completion_logprobs(ChoiceProgress& progress, const engine::OutputDelta& delta) const {
  json::array offsets, values, tokens, tops;
  const auto add = [&](TokenId id, const PositionLogprobs* position) {
    offsets.emplace_back(progress.text_offset);
    progress.text_offset += characters(id);
    tokens.emplace_back(token_text(id));
    if (position == nullptr) {
      values.emplace_back(nullptr);
      tops.emplace_back(nullptr);
      return;
    }
    values.emplace_back(finite(position->chosen.logprob));
    json::object top;  // the chosen token is always among them; of equal spellings the likeliest stays
    top.emplace(token_text(position->chosen.id), finite(position->chosen.logprob));
    for (const TokenLogprob& other : alternatives(*position, *context_.num_logprobs)) {
      top.emplace(token_text(other.id), finite(other.logprob));
    }
    tops.emplace_back(std::move(top));
  };
  if (context_.echo && !progress.begun) {
    const std::vector<TokenId>& ids = progress.prompt->ids;
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool known = i > 0 && i <= progress.prompt_logprobs->size();
      add(ids[i], known ? &(*progress.prompt_logprobs)[i - 1] : nullptr);
    }
  }
  for (size_t i = 0; i < delta.tokens.size(); ++i) {
    add(delta.tokens[i], i < delta.logprobs.size() ? &delta.logprobs[i] : nullptr);
  }
  return json::object{{"text_offset", std::move(offsets)},
                      {"token_logprobs", std::move(values)},
                      {"tokens", std::move(tokens)},
                      {"top_logprobs", std::move(tops)}};
}

json::value AnswerFormat::prompt_logprobs(std::span<const PositionLogprobs> positions) const {
  const auto entry = [this](const TokenLogprob& token) {
    return json::object{
        {"logprob", finite(token.logprob)}, {"rank", token.rank}, {"decoded_token", token_text(token.id)}};
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

json::object AnswerFormat::opening_choice(const ChoiceProgress& progress) const {
  json::object out{{"index", progress.index},
                   {"delta", {{"role", "assistant"}, {"content", ""}}},
                   {"logprobs", nullptr},
                   {"finish_reason", nullptr}};
  return out;
}

json::object AnswerFormat::choice(ChoiceProgress& progress, const engine::OutputDelta& delta) const {
  json::object out{{"index", progress.index}};
  const std::string text = progress.begun ? delta.text : progress.prompt->echo + delta.text;
  if (!context_.chat) {
    out["text"] = text;
  } else if (context_.stream) {
    json::object part;
    if (!text.empty() || delta.finish == FinishReason::kNone) part["content"] = text;
    out["delta"] = std::move(part);
  } else {
    out["message"] = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
  }
  out["logprobs"] = nullptr;
  if (context_.num_logprobs) {
    if (!context_.chat) {
      out["logprobs"] = completion_logprobs(progress, delta);
    } else if (!delta.logprobs.empty() || !context_.stream) {
      out["logprobs"] = chat_logprobs(delta);
    }
  }
  const bool finished = delta.finish != FinishReason::kNone;
  out["finish_reason"] = finished ? json::value(to_string(delta.finish)) : json::value(nullptr);
  if (finished || !context_.chat) out["stop_reason"] = stop_reason(delta);
  if (context_.return_token_ids) {
    out["token_ids"] = ids_array(delta.tokens);
    if (!context_.chat && !progress.begun) out["prompt_token_ids"] = ids_array(progress.prompt->ids);
  }
  if (context_.prompt_logprobs_asked && !context_.chat) {
    out["prompt_logprobs"] = prompt_logprobs(*progress.prompt_logprobs);
  }
  if (delta.cumulative_logprob) out["cumulative_logprob"] = *delta.cumulative_logprob;
  if (!delta.receipt.empty()) out["receipt"] = delta.receipt;
  progress.begun = true;
  return out;
}

json::object AnswerFormat::envelope(json::array choices, json::value usage) const {
  const char* object = !context_.chat    ? "text_completion"
                       : context_.stream ? "chat.completion.chunk"
                                         : "chat.completion";
  json::object out{{"id", context_.id},
                   {"object", object},
                   {"created", context_.created},
                   {"model", context_.model},
                   {"choices", std::move(choices)}};
  if (!usage.is_null() || context_.usage_in_chunks) out["usage"] = std::move(usage);
  return out;
}

json::array ids_array(std::span<const TokenId> ids) {
  json::array out;
  out.reserve(ids.size());
  for (TokenId id : ids) out.emplace_back(id);
  return out;
}

json::object usage_object(int64_t prompt_tokens, int64_t completion_tokens, int64_t cached_tokens) {
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion_tokens},
          {"total_tokens", prompt_tokens + completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", 0}}}};
}

std::string sse_event(const json::object& payload) {
  return "data: " + json::serialize(payload) + "\n\n";
}

}  // namespace quire::server
