#include "server/messages_writer.h"

#include <variant>

#include "base/parse_json.h"

namespace quire::server {
namespace json = boost::json;

namespace {

void event(std::string& events, std::string_view type, json::object fields) {
  fields["type"] = type;
  events += sse_event(type, fields);
}

// What the cache held counts apart.
json::object message_usage(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"output_tokens", usage.completion_tokens}};
}

ApiError stopping() {
  return {503, "The server is shutting down.", "", "", 1};
}

json::object thinking_block(const std::string& text) {
  return {{"type", "thinking"}, {"thinking", text}, {"signature", ""}};
}

json::object tool_use_block(const grammar::ToolCallPiece& call) {
  return {{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", json::object()}};
}

// Arguments are an object here. What is none, because the answer was cut short, is left out.
json::object arguments_of(const grammar::ToolCallPiece& call) {
  boost::system::error_code error;
  json::value arguments = parse_json(call.arguments, error);
  if (error || !arguments.is_object()) return {};
  return arguments.get_object();
}

}  // namespace

json::object MessagesWriter::message() const {
  return {{"id", context_.id},        {"type", "message"},      {"role", "assistant"},     {"model", context_.model},
          {"content", json::array()}, {"stop_reason", nullptr}, {"stop_sequence", nullptr}};
}

json::object MessagesWriter::ending(const engine::OutputDelta& last, const ChoiceState& choice) const {
  json::object out{{"stop_reason", "end_turn"}, {"stop_sequence", nullptr}};
  if (const auto* stop = std::get_if<std::string>(&last.stop_reason)) {
    out["stop_reason"] = "stop_sequence";
    out["stop_sequence"] = *stop;
  } else if (last.finish == FinishReason::kLength) {
    out["stop_reason"] = choice.num_tokens < max_tokens_ ? "model_context_window_exceeded" : "max_tokens";
  } else if (choice.num_tool_calls > 0) {
    out["stop_reason"] = "tool_use";
  }
  return out;
}

void MessagesWriter::open(Kind kind, json::object block, std::string& events) {
  close(events);
  kind_ = kind;
  event(events, "content_block_start", {{"index", index_}, {"content_block", std::move(block)}});
}

void MessagesWriter::close(std::string& events) {
  if (kind_ == Kind::kNone) return;
  event(events, "content_block_stop", {{"index", index_++}});
  kind_ = Kind::kNone;
}

void MessagesWriter::change(json::object delta, std::string& events) const {
  event(events, "content_block_delta", {{"index", index_}, {"delta", std::move(delta)}});
}

void MessagesWriter::begin(const Answer& answer, std::string& events) {
  json::object opening = message();
  opening["usage"] = message_usage(answer.usage());
  event(events, "message_start", {{"message", std::move(opening)}});
  event(events, "ping", {});
}

void MessagesWriter::piece(const Answer&, const ChoiceState& choice, const engine::OutputDelta& delta,
                           std::string& events) {
  if (context_.include_reasoning && !delta.reasoning.empty()) {
    if (kind_ != Kind::kThinking) open(Kind::kThinking, thinking_block(""), events);
    change({{"type", "thinking_delta"}, {"thinking", delta.reasoning}}, events);
  }
  if (!delta.text.empty()) {
    if (kind_ != Kind::kText) open(Kind::kText, {{"type", "text"}, {"text", ""}}, events);
    change({{"type", "text_delta"}, {"text", delta.text}}, events);
  }
  for (const grammar::ToolCallPiece& call : delta.tool_calls) {
    if (kind_ != Kind::kToolUse || call_index_ != call.index) open(Kind::kToolUse, tool_use_block(call), events);
    call_index_ = call.index;
    if (!call.arguments.empty()) {
      change({{"type", "input_json_delta"}, {"partial_json", call.arguments}}, events);
    }
  }
  if (delta.finish == FinishReason::kNone) return;
  aborted_ = delta.finish == FinishReason::kAbort;
  ending_ = ending(delta, choice);
  close(events);
}

void MessagesWriter::end(const Answer& answer, std::string& events) {
  if (aborted_) return fail(stopping(), events);
  event(events, "message_delta", {{"delta", ending_}, {"usage", message_usage(answer.usage())}});
  event(events, "message_stop", {});
}

void MessagesWriter::fail(const ApiError& error, std::string& events) {
  events += sse_event("error", anthropic_error_object(error));
}

HttpResponse MessagesWriter::whole(const Answer& answer, std::span<const engine::OutputDelta> choices) {
  const engine::OutputDelta& all = choices.front();
  if (all.finish == FinishReason::kAbort) return failure(stopping());
  json::array content;
  if (context_.include_reasoning && !all.reasoning.empty()) content.emplace_back(thinking_block(all.reasoning));
  if (!all.text.empty()) content.push_back({{"type", "text"}, {"text", all.text}});
  for (const grammar::ToolCallPiece& call : all.tool_calls) {
    json::object block = tool_use_block(call);
    block["input"] = arguments_of(call);
    content.emplace_back(std::move(block));
  }
  json::object body = message();
  body["content"] = std::move(content);
  for (auto& [name, value] : ending(all, answer.choices.front())) body[name] = value;
  body["usage"] = message_usage(answer.usage());
  return {200, "application/json", {}, json::serialize(body)};
}

HttpResponse MessagesWriter::failure(const ApiError& error) {
  return error_response_at("/v1/messages", error);
}

}  // namespace quire::server
