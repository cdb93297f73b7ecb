#include "server/openai_writer.h"

#include <algorithm>

#include "server/utf8.h"

namespace quire::server {
namespace json = boost::json;

namespace {

json::value stop_reason(const engine::OutputDelta& delta) {
  if (const auto* text = std::get_if<std::string>(&delta.stop_reason)) return json::value(*text);
  if (const auto* id = std::get_if<TokenId>(&delta.stop_reason)) return json::value(*id);
  return nullptr;
}

}  // namespace

json::object usage_object(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}}};
}

// ---------------------------------------------------------------------------------------------------------------
// common

OpenAiWriter::OpenAiWriter(AnswerContext context, std::string_view object, size_t num_choices)
    : context_(std::move(context)),
      tokens_(context_.tokenizer, context_.tokens_as_token_ids),
      object_(object),
      begun_(num_choices) {}

void OpenAiWriter::begin(const Answer&, std::string&) {}

void OpenAiWriter::piece(const Answer&, const ChoiceState& choice, const engine::OutputDelta& delta,
                         std::string& events) {
  const bool tells = !delta.text.empty() || (context_.include_reasoning && !delta.reasoning.empty()) ||
                     !delta.tool_calls.empty() || delta.finish != FinishReason::kNone ||
                     (!delta.tokens.empty() && (context_.num_logprobs || context_.return_token_ids));
  if (tells) events += sse_event(envelope({choice_part(choice, delta)}, usage_of(choice)));
}

void OpenAiWriter::end(const Answer& answer, std::string& events) {
  if (context_.include_usage) events += sse_event(envelope({}, usage_object(answer.usage())));
  events += kSseDone;
}

void OpenAiWriter::fail(const ApiError& error, std::string& events) {
  events += sse_event(error_object(error));
  events += kSseDone;
}

HttpResponse OpenAiWriter::whole(const Answer& answer, std::span<const engine::OutputDelta> choices) {
  json::array parts;
  for (size_t i = 0; i < choices.size(); ++i) parts.emplace_back(choice_part(answer.choices[i], choices[i]));
  json::object body = envelope(std::move(parts), usage_object(answer.usage()));
  complete(answer, body);
  return {200, "application/json", {}, json::serialize(body)};
}

json::object OpenAiWriter::choice_part(const ChoiceState& choice, const engine::OutputDelta& delta) {
  json::object out = part(choice, delta);
  begun_[static_cast<size_t>(choice.index)] = true;
  return out;
}

json::object OpenAiWriter::envelope(json::array choices, json::value usage) const {
  json::object out{{"id", context_.id},
                   {"object", object_},
                   {"created", context_.created},
                   {"model", context_.model},
                   {"choices", std::move(choices)}};
  // OpenAI sends "usage": null in every chunk but the last.
  if (!usage.is_null() || context_.include_usage) out["usage"] = std::move(usage);
  return out;
}

json::value OpenAiWriter::usage_of(const ChoiceState& choice) const {
  if (!context_.continuous_usage) return nullptr;
  return usage_object(choice.usage());
}

std::string OpenAiWriter::text_of(const ChoiceState& choice, const engine::OutputDelta& delta) const {
  return begun(choice) ? delta.text : choice.prompt->prompt.echo + delta.text;
}

json::object OpenAiWriter::choice_object(const ChoiceState& choice, const engine::OutputDelta& delta) const {
  const bool finished = delta.finish != FinishReason::kNone;
  json::object out{{"index", choice.index},
                   {"logprobs", nullptr},
                   {"finish_reason", finished ? json::value(to_string(delta.finish)) : json::value(nullptr)}};
  if (finished) out["stop_reason"] = stop_reason(delta);
  if (context_.return_token_ids) out["token_ids"] = ids_array(delta.tokens);
  if (delta.cumulative_logprob) out["cumulative_logprob"] = *delta.cumulative_logprob;
  if (!delta.receipt.empty()) out["receipt"] = delta.receipt;
  return out;
}

// ---------------------------------------------------------------------------------------------------------------
// chats

ChatWriter::ChatWriter(AnswerContext context, size_t num_choices)
    : OpenAiWriter(std::move(context), context.stream ? "chat.completion.chunk" : "chat.completion", num_choices) {}

namespace {

// A piece of a stream has each call's place; a whole answer has them in order.
json::array tool_calls(std::span<const grammar::ToolCallPiece> pieces, bool stream) {
  json::array out;
  for (const grammar::ToolCallPiece& piece : pieces) {
    json::object function;
    if (!piece.name.empty() || !stream) function["name"] = piece.name;
    function["arguments"] = piece.arguments;
    json::object call;
    if (stream) call["index"] = piece.index;
    if (!piece.id.empty() || !stream) {
      call["id"] = piece.id;
      call["type"] = "function";
    }
    call["function"] = std::move(function);
    out.emplace_back(std::move(call));
  }
  return out;
}

}  // namespace

// The first chunk of a choice says who speaks.
void ChatWriter::begin(const Answer& answer, std::string& events) {
  for (const ChoiceState& choice : answer.choices) {
    json::object part{{"index", choice.index},
                      {"delta", {{"role", context_.role}, {"content", ""}}},
                      {"logprobs", nullptr},
                      {"finish_reason", nullptr}};
    json::object opening = envelope({std::move(part)}, usage_of(choice));
    if (context_.return_token_ids) opening["prompt_token_ids"] = ids_array(choice.prompt->prompt.ids);
    events += sse_event(opening);
  }
}

json::object ChatWriter::part(const ChoiceState& choice, const engine::OutputDelta& delta) {
  json::object out = choice_object(choice, delta);
  const std::string text = text_of(choice, delta);
  const bool reasons = context_.include_reasoning && !delta.reasoning.empty();
  if (context_.stream) {
    json::object piece;
    if (reasons) piece["reasoning"] = delta.reasoning;
    if (!delta.tool_calls.empty()) piece["tool_calls"] = tool_calls(delta.tool_calls, /*stream=*/true);
    if (!text.empty() || (piece.empty() && delta.finish == FinishReason::kNone)) piece["content"] = text;
    out["delta"] = std::move(piece);
  } else {
    json::object message{{"role", context_.role}, {"content", text}, {"refusal", nullptr}};
    if (reasons) message["reasoning"] = delta.reasoning;
    if (!delta.tool_calls.empty()) {
      message["tool_calls"] = tool_calls(delta.tool_calls, /*stream=*/false);
      if (text.empty()) message["content"] = nullptr;
    }
    out["message"] = std::move(message);
  }
  if (delta.finish == FinishReason::kStop && choice.num_tool_calls > 0 && !context_.named_tool) {
    out["finish_reason"] = "tool_calls";
  }
  if (context_.num_logprobs && (!delta.logprobs.empty() || !context_.stream)) {
    out["logprobs"] = {{"content", tokens_.chat_logprobs(delta.logprobs, *context_.num_logprobs)}};
  }
  return out;
}

void ChatWriter::complete(const Answer& answer, json::object& body) {
  const PromptState& state = answer.prompts.front();
  if (context_.prompt_logprobs_asked) body["prompt_logprobs"] = tokens_.prompt_logprobs(state.logprobs);
  if (context_.return_token_ids) body["prompt_token_ids"] = ids_array(state.prompt.ids);
}

// ---------------------------------------------------------------------------------------------------------------
// completions

CompletionWriter::CompletionWriter(AnswerContext context, size_t num_choices)
    : OpenAiWriter(std::move(context), "text_completion", num_choices), text_offsets_(num_choices) {}

bool CompletionWriter::prompt_comes_first() const {
  return context_.echo && context_.num_logprobs.has_value();
}

json::object CompletionWriter::part(const ChoiceState& choice, const engine::OutputDelta& delta) {
  json::object out = choice_object(choice, delta);
  out["text"] = text_of(choice, delta);
  out["stop_reason"] = stop_reason(delta);
  if (context_.num_logprobs) out["logprobs"] = logprobs(choice, delta);
  if (context_.return_token_ids && !begun(choice)) out["prompt_token_ids"] = ids_array(choice.prompt->prompt.ids);
  if (context_.prompt_logprobs_asked) out["prompt_logprobs"] = tokens_.prompt_logprobs(choice.prompt->logprobs);
  return out;
}

int64_t CompletionWriter::characters(TokenId id) const {
  if (context_.tokenizer == nullptr) return 0;
  if (context_.skip_special_tokens && context_.tokenizer->is_special(id)) return 0;
  const std::string bytes = context_.tokenizer->token_bytes(id);
  return static_cast<int64_t>(bytes.size()) - std::count_if(bytes.begin(), bytes.end(), is_utf8_continuation);
}

json::object CompletionWriter::logprobs(const ChoiceState& choice, const engine::OutputDelta& delta) {
  json::array offsets, values, tokens, tops;
  int64_t& offset = text_offsets_[static_cast<size_t>(choice.index)];
  const auto add = [&](TokenId id, const PositionLogprobs* position) {
    offsets.emplace_back(offset);
    offset += characters(id);
    tokens.emplace_back(tokens_.spelling(id));
    if (position == nullptr) {
      values.emplace_back(nullptr);
      tops.emplace_back(nullptr);
      return;
    }
    values.emplace_back(finite_logprob(position->chosen.logprob));
    json::object top;  // the chosen token is always among them; of equal spellings the likeliest stays
    top.emplace(tokens_.spelling(position->chosen.id), finite_logprob(position->chosen.logprob));
    for (const TokenLogprob& other : alternatives(*position, *context_.num_logprobs)) {
      top.emplace(tokens_.spelling(other.id), finite_logprob(other.logprob));
    }
    tops.emplace_back(std::move(top));
  };
  if (context_.echo && !begun(choice)) {
    const std::vector<TokenId>& ids = choice.prompt->prompt.ids;
    const std::vector<PositionLogprobs>& known = choice.prompt->logprobs;
    for (size_t i = 0; i < ids.size(); ++i) add(ids[i], i > 0 && i <= known.size() ? &known[i - 1] : nullptr);
  }
  for (size_t i = 0; i < delta.tokens.size(); ++i) {
    add(delta.tokens[i], i < delta.logprobs.size() ? &delta.logprobs[i] : nullptr);
  }
  return {{"text_offset", std::move(offsets)},
          {"token_logprobs", std::move(values)},
          {"tokens", std::move(tokens)},
          {"top_logprobs", std::move(tops)}};
}

}  // namespace quire::server
