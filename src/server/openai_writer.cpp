#include "server/openai_writer.h"

#include <algorithm>
#include <unordered_set>

#include "server/json_text.h"
#include "server/utf8.h"

namespace quire::server {
namespace json = boost::json;

namespace {

json::value stop_reason(const engine::OutputDelta& delta) {
  if (const auto* text = std::get_if<std::string>(&delta.stop_reason)) return json::value(*text);
  if (const auto* id = std::get_if<TokenId>(&delta.stop_reason)) return json::value(*id);
  return nullptr;
}

// A JSON object's text that may be gone on with: without its closing brace.
std::string opened(const json::object& object) {
  std::string text = json::serialize(object);
  text.pop_back();
  return text;
}

}  // namespace

json::object usage_object(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details",
           {{"reasoning_tokens", usage.reasoning_tokens},
            {"accepted_prediction_tokens", usage.accepted_prediction_tokens},
            {"rejected_prediction_tokens", usage.rejected_prediction_tokens}}}};
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
  if (!tells) return;
  TextBody part;
  choice_part(choice, delta, part);
  events += "data: " + chunk(part, usage_of(choice)) + "\n\n";
}

void OpenAiWriter::end(const Answer& answer, std::string& events) {
  if (context_.include_usage) events += "data: " + chunk({}, usage_object(answer.usage())) + "\n\n";
  events += kSseDone;
}

void OpenAiWriter::fail(const ApiError& error, std::string& events) {
  events += sse_event(error_object(error));
  events += kSseDone;
}

HttpResponse OpenAiWriter::whole(const Answer& answer, std::span<const engine::OutputDelta> choices) {
  auto body = std::make_shared<TextBody>();
  body->add(opened(envelope(usage_object(answer.usage()))));
  body->add(",\"choices\":[");
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) body->add(",");
    choice_part(answer.choices[i], choices[i], *body);
  }
  body->add("]");
  complete(answer, *body);
  if (!answer.kv_transfer_params.empty()) body->add(",\"kv_transfer_params\":" + answer.kv_transfer_params);
  body->add("}");
  if (body->num_texts() == 1) return {200, "application/json", {}, body->text()};
  return {200, "application/json", {}, "", std::move(body)};
}

std::string OpenAiWriter::chunk(const TextBody& choices, const json::value& usage, std::string_view more) const {
  return opened(envelope(usage)) + ",\"choices\":[" + choices.text() + "]" + std::string(more) + "}";
}

void OpenAiWriter::choice_part(const ChoiceState& choice, const engine::OutputDelta& delta, TextBody& out) {
  part(choice, delta, out);
  begun_[static_cast<size_t>(choice.index)] = true;
}

json::object OpenAiWriter::envelope(json::value usage) const {
  json::object out{{"id", context_.id}, {"object", object_}, {"created", context_.created}, {"model", context_.model}};
  if (!context_.system_fingerprint.empty()) out["system_fingerprint"] = context_.system_fingerprint;
  if (!context_.service_tier.empty()) out["service_tier"] = context_.service_tier;
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
                   {"finish_reason", finished ? json::value(to_string(delta.finish)) : json::value(nullptr)}};
  if (finished) out["stop_reason"] = stop_reason(delta);
  if (delta.cumulative_logprob) out["cumulative_logprob"] = *delta.cumulative_logprob;
  if (!delta.receipt.empty()) out["receipt"] = delta.receipt;
  return out;
}

void OpenAiWriter::add_ids(const engine::OutputDelta& delta, TextBody& out) const {
  if (!context_.return_token_ids) return;
  out.add(",\"token_ids\":");
  out.add(ids_text(delta.tokens));
}

// ---------------------------------------------------------------------------------------------------------------
// chats

ChatWriter::ChatWriter(AnswerContext context, size_t num_choices)
    : OpenAiWriter(std::move(context), context.stream ? "chat.completion.chunk" : "chat.completion", num_choices) {}

namespace {

// By vLLM's name, and by DeepSeek's, which vLLM had before and SDKs look for.
void put_reasoning(json::object& message, const std::string& reasoning) {
  message["reasoning"] = reasoning;
  message["reasoning_content"] = reasoning;
}

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
    std::string ids;
    if (context_.return_token_ids) ids = ",\"prompt_token_ids\":" + ids_text(choice.prompt->prompt.ids);
    events += "data: " + chunk(TextBody(json::serialize(part)), usage_of(choice), ids) + "\n\n";
  }
}

void ChatWriter::part(const ChoiceState& choice, const engine::OutputDelta& delta, TextBody& body) {
  json::object out = choice_object(choice, delta);
  const std::string text = text_of(choice, delta);
  const bool reasons = context_.include_reasoning && !delta.reasoning.empty();
  if (context_.stream) {
    json::object piece;
    if (reasons) put_reasoning(piece, delta.reasoning);
    if (!delta.tool_calls.empty()) piece["tool_calls"] = tool_calls(delta.tool_calls, /*stream=*/true);
    if (!text.empty() || (piece.empty() && delta.finish == FinishReason::kNone)) piece["content"] = text;
    out["delta"] = std::move(piece);
  } else {
    json::object message{{"role", context_.role}, {"content", text}, {"refusal", nullptr}};
    if (reasons) put_reasoning(message, delta.reasoning);
    if (!delta.tool_calls.empty()) {
      message["tool_calls"] = tool_calls(delta.tool_calls, /*stream=*/false);
      if (text.empty()) message["content"] = nullptr;
    }
    out["message"] = std::move(message);
  }
  if (delta.finish == FinishReason::kStop && choice.num_tool_calls > 0 && !context_.named_tool) {
    out["finish_reason"] = "tool_calls";
  }
  body.add(opened(out));
  add_ids(delta, body);
  body.add(",\"logprobs\":");
  if (context_.num_logprobs && (!delta.logprobs.empty() || !context_.stream)) {
    std::string content;
    tokens_.append_chat_logprobs(delta.logprobs, *context_.num_logprobs, content);
    body.add("{\"content\":");
    body.add(std::move(content));
    body.add("}}");
  } else {
    body.add("null}");
  }
}

void ChatWriter::complete(const Answer& answer, TextBody& out) {
  const PromptState& state = answer.prompts.front();
  if (context_.prompt_logprobs_asked) {
    std::string text = ",\"prompt_logprobs\":";
    tokens_.append_prompt_logprobs(state.logprobs, text);
    out.add(std::move(text));
  }
  if (context_.return_token_ids) out.add(",\"prompt_token_ids\":" + ids_text(state.prompt.ids));
}

// ---------------------------------------------------------------------------------------------------------------
// completions

CompletionWriter::CompletionWriter(AnswerContext context, size_t num_choices)
    : OpenAiWriter(std::move(context), "text_completion", num_choices), text_offsets_(num_choices) {}

bool CompletionWriter::prompt_comes_first() const {
  return context_.echo && context_.num_logprobs.has_value();
}

void CompletionWriter::part(const ChoiceState& choice, const engine::OutputDelta& delta, TextBody& out) {
  json::object fields = choice_object(choice, delta);
  fields["text"] = text_of(choice, delta);
  fields["stop_reason"] = stop_reason(delta);
  out.add(opened(fields));
  add_ids(delta, out);
  out.add(",\"logprobs\":");
  if (context_.num_logprobs) {
    add_logprobs(choice, delta, out);
  } else {
    out.add("null");
  }
  PromptText& prompt = prompts_[choice.prompt];
  if (context_.return_token_ids && !begun(choice)) {
    if (prompt.ids == nullptr) prompt.ids = std::make_shared<std::string>(ids_text(choice.prompt->prompt.ids));
    out.add(",\"prompt_token_ids\":");
    out.add(prompt.ids);
  }
  if (context_.prompt_logprobs_asked) {
    if (prompt.logprobs == nullptr) {
      auto text = std::make_shared<std::string>();
      tokens_.append_prompt_logprobs(choice.prompt->logprobs, *text);
      prompt.logprobs = std::move(text);
    }
    out.add(",\"prompt_logprobs\":");
    out.add(prompt.logprobs);
  }
  out.add("}");
}

int64_t CompletionWriter::characters(TokenId id) const {
  if (context_.tokenizer == nullptr) return 0;
  if (context_.skip_special_tokens && context_.tokenizer->is_special(id)) return 0;
  const std::string bytes = context_.tokenizer->token_bytes(id);
  return static_cast<int64_t>(bytes.size()) - std::count_if(bytes.begin(), bytes.end(), is_utf8_continuation);
}

// Each list gets a comma behind what is added.
void CompletionWriter::add_token(TokenId id, const PositionLogprobs* position, Lists& lists) const {
  append_json(lists.offsets, lists.offset);
  lists.offset += characters(id);
  append_json(lists.tokens, tokens_.spelling(id));
  if (position == nullptr) {
    lists.values += "null";
    lists.tops += "null";
  } else {
    append_json(lists.values, finite_logprob(position->chosen.logprob));
    // The chosen token is always among them; of equal spellings the likeliest stays.
    std::unordered_set<std::string> spellings;
    const auto add = [&](const TokenLogprob& token) {
      std::string spelling = tokens_.spelling(token.id);
      if (spellings.contains(spelling)) return;
      lists.tops += spellings.empty() ? '{' : ',';
      append_json(lists.tops, spelling);
      lists.tops += ':';
      append_json(lists.tops, finite_logprob(token.logprob));
      spellings.insert(std::move(spelling));
    };
    add(position->chosen);
    for (const TokenLogprob& other : alternatives(*position, *context_.num_logprobs)) add(other);
    lists.tops += '}';
  }
  for (std::string* list : {&lists.offsets, &lists.values, &lists.tokens, &lists.tops}) *list += ',';
}

void CompletionWriter::write_echo(const PromptState& prompt, PromptText& text) const {
  const std::vector<TokenId>& ids = prompt.prompt.ids;
  const std::vector<PositionLogprobs>& known = prompt.logprobs;
  Lists lists;
  for (size_t i = 0; i < ids.size(); ++i) {
    add_token(ids[i], i > 0 && i <= known.size() ? &known[i - 1] : nullptr, lists);
  }
  text.offset = lists.offset;
  text.offsets = std::make_shared<std::string>(std::move(lists.offsets));
  text.values = std::make_shared<std::string>(std::move(lists.values));
  text.tokens = std::make_shared<std::string>(std::move(lists.tokens));
  text.tops = std::make_shared<std::string>(std::move(lists.tops));
}

void CompletionWriter::add_logprobs(const ChoiceState& choice, const engine::OutputDelta& delta, TextBody& out) {
  const bool echoes = context_.echo && !begun(choice) && !choice.prompt->prompt.ids.empty();
  PromptText& prompt = prompts_[choice.prompt];
  if (echoes && prompt.offsets == nullptr) write_echo(*choice.prompt, prompt);
  int64_t& offset = text_offsets_[static_cast<size_t>(choice.index)];
  if (echoes) offset = prompt.offset;
  Lists own;
  own.offset = offset;
  for (size_t i = 0; i < delta.tokens.size(); ++i) {
    add_token(delta.tokens[i], i < delta.logprobs.size() ? &delta.logprobs[i] : nullptr, own);
  }
  offset = own.offset;
  const auto add = [&](std::string_view name, const TextBody::Text& first, std::string& rest) {
    out.add(name);
    // Between the prompt's entries and its own stands a comma, behind the last one none.
    if (!rest.empty()) rest.pop_back();
    if (echoes && rest.empty()) {
      out.add(std::string_view(*first).substr(0, first->size() - 1));
    } else if (echoes) {
      out.add(first);
    }
    out.add(std::move(rest));
  };
  add("{\"text_offset\":[", prompt.offsets, own.offsets);
  add("],\"token_logprobs\":[", prompt.values, own.values);
  add("],\"tokens\":[", prompt.tokens, own.tokens);
  add("],\"top_logprobs\":[", prompt.tops, own.tops);
  out.add("]}");
}

}  // namespace quire::server
