#include "server/responses_writer.h"

#include <ctime>
#include <utility>

#include "server/random_id.h"

namespace quire::server {
namespace json = boost::json;

namespace {

// Why an answer is not all that it could have been; empty where it is.
std::string_view incomplete_reason(FinishReason finish) {
  switch (finish) {
    case FinishReason::kLength:
      return "max_output_tokens";
    case FinishReason::kRepetition:
      return "repetition";
    case FinishReason::kAbort:
      return "server_shutdown";
    default:
      return {};
  }
}

json::object response_usage(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

void append_text(json::object& message, const char* field, const std::string& text) {
  json::value& value = message.emplace(field, "").first->value();
  if (value.is_null()) value = "";
  value.get_string() += text;
}

}  // namespace

ResponsesWriter::ResponsesWriter(AnswerContext context, json::object response, Finished finished)
    : context_(std::move(context)),
      tokens_(context_.tokenizer, context_.tokens_as_token_ids),
      response_(std::move(response)),
      finished_(std::move(finished)),
      message_{{"role", "assistant"}, {"content", nullptr}} {}

void ResponsesWriter::event(std::string_view type, json::object fields) {
  if (events_ == nullptr) return;
  fields["type"] = type;
  fields["sequence_number"] = sequence_number_++;
  *events_ += sse_event(type, fields);
}

// ---------------------------------------------------------------------------------------------------------------
// items

json::object ResponsesWriter::part() const {
  if (kind_ == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", text_}};
  return {{"type", "output_text"}, {"annotations", json::array()}, {"logprobs", logprobs_}, {"text", text_}};
}

// whole: with what it holds; else as it begins.
json::object ResponsesWriter::item(std::string_view status, bool whole) const {
  json::object out{{"id", item_id_}, {"status", status}};
  json::array parts;
  if (whole && kind_ != Kind::kCall) parts.emplace_back(part());
  switch (kind_) {
    case Kind::kReasoning:
      out["type"] = "reasoning";
      out["summary"] = json::array();
      out["content"] = std::move(parts);
      break;
    case Kind::kCall:
      out["type"] = "function_call";
      out["call_id"] = call_id_;
      out["name"] = call_name_;
      out["arguments"] = text_;
      break;
    default:
      out["type"] = "message";
      out["role"] = "assistant";
      out["content"] = std::move(parts);
  }
  return out;
}

json::object ResponsesWriter::place() const {
  json::object out{{"item_id", item_id_}, {"output_index", output_.size()}};
  if (kind_ != Kind::kCall) out["content_index"] = 0;
  return out;
}

void ResponsesWriter::open(Kind kind) {
  close();
  kind_ = kind;
  item_id_ = random_id(kind == Kind::kReasoning ? "rs_" : kind == Kind::kCall ? "fc_" : "msg_");
  event("response.output_item.added", {{"output_index", output_.size()}, {"item", item("in_progress", false)}});
  if (kind == Kind::kCall) return;
  json::object added = place();
  added["part"] = part();
  event("response.content_part.added", std::move(added));
}

void ResponsesWriter::close() {
  if (kind_ == Kind::kNone) return;
  json::object done = place();
  if (kind_ == Kind::kCall) {
    done["name"] = call_name_;
    done["arguments"] = text_;
    event("response.function_call_arguments.done", std::move(done));
    json::value& calls = message_.emplace("tool_calls", json::array()).first->value();
    calls.get_array().push_back(
        {{"id", call_id_}, {"type", "function"}, {"function", {{"name", call_name_}, {"arguments", text_}}}});
  } else {
    done["text"] = text_;
    if (kind_ == Kind::kText) done["logprobs"] = logprobs_;
    event(kind_ == Kind::kText ? "response.output_text.done" : "response.reasoning_text.done", std::move(done));
    json::object part_done = place();
    part_done["part"] = part();
    event("response.content_part.done", std::move(part_done));
    append_text(message_, kind_ == Kind::kText ? "content" : "reasoning_content", text_);
  }
  json::object whole = item(incomplete_reason(finish_).empty() ? "completed" : "incomplete", true);
  event("response.output_item.done", {{"output_index", output_.size()}, {"item", whole}});
  output_.emplace_back(std::move(whole));
  text_.clear();
  logprobs_.clear();
  kind_ = Kind::kNone;
}

void ResponsesWriter::add_text(Kind kind, const std::string& text, json::array logprobs) {
  if (kind_ != kind) open(kind);
  text_ += text;
  json::object fields = place();
  fields["delta"] = text;
  if (kind == Kind::kText) {
    logprobs_.insert(logprobs_.end(), logprobs.begin(), logprobs.end());
    fields["logprobs"] = std::move(logprobs);
  }
  event(kind == Kind::kText ? "response.output_text.delta" : "response.reasoning_text.delta", std::move(fields));
}

void ResponsesWriter::add_call(const grammar::ToolCallPiece& piece) {
  if (kind_ != Kind::kCall || call_index_ != piece.index) {
    close();
    call_index_ = piece.index;
    call_id_ = piece.id;
    call_name_ = piece.name;
    open(Kind::kCall);
  }
  if (piece.arguments.empty()) return;
  text_ += piece.arguments;
  json::object fields = place();
  fields["delta"] = piece.arguments;
  event("response.function_call_arguments.delta", std::move(fields));
}

void ResponsesWriter::add(const engine::OutputDelta& delta) {
  json::array logprobs;
  if (context_.num_logprobs) logprobs = tokens_.chat_logprobs(delta.logprobs, *context_.num_logprobs);
  if (context_.include_reasoning && !delta.reasoning.empty()) add_text(Kind::kReasoning, delta.reasoning, {});
  const bool silent = delta.reasoning.empty() && delta.tool_calls.empty();
  if (!delta.text.empty() || (silent && !logprobs.empty())) add_text(Kind::kText, delta.text, std::move(logprobs));
  for (const grammar::ToolCallPiece& piece : delta.tool_calls) add_call(piece);
  finish_ = delta.finish;
  if (finish_ == FinishReason::kNone) return;
  if (kind_ == Kind::kNone && output_.empty()) open(Kind::kText);  // an answer without a word is one all the same
  close();
}

// ---------------------------------------------------------------------------------------------------------------
// the response

// As it is from now on, told to whoever keeps it.
void ResponsesWriter::finish(const Usage& usage) {
  const std::string_view reason = incomplete_reason(finish_);
  response_["status"] = reason.empty() ? "completed" : "incomplete";
  response_["completed_at"] = reason.empty() ? json::value(static_cast<int64_t>(std::time(nullptr))) : json::value();
  response_["incomplete_details"] = reason.empty() ? json::value() : json::value{{"reason", reason}};
  response_["output"] = output_;
  response_["usage"] = response_usage(usage);
  finished_(response_, message_);
}

void ResponsesWriter::finish_failed(const ApiError& error) {
  response_["status"] = "failed";
  response_["error"] = {{"code", error.code.empty() ? "server_error" : error.code}, {"message", error.message}};
  finished_(response_, message_);
}

void ResponsesWriter::begin(const Answer&, std::string& events) {
  events_ = &events;
  event("response.created", {{"response", response_}});
  event("response.in_progress", {{"response", response_}});
}

void ResponsesWriter::piece(const Answer&, const ChoiceState&, const engine::OutputDelta& delta, std::string& events) {
  events_ = &events;
  add(delta);
}

void ResponsesWriter::end(const Answer& answer, std::string& events) {
  events_ = &events;
  finish(answer.usage());
  event(incomplete_reason(finish_).empty() ? "response.completed" : "response.incomplete", {{"response", response_}});
}

void ResponsesWriter::fail(const ApiError& error, std::string& events) {
  events_ = &events;
  finish_failed(error);
  event("response.failed", {{"response", response_}});
}

HttpResponse ResponsesWriter::whole(const Answer& answer, std::span<const engine::OutputDelta> choices) {
  events_ = nullptr;
  add(choices.front());
  finish(answer.usage());
  return {200, "application/json", {}, json::serialize(response_)};
}

HttpResponse ResponsesWriter::failure(const ApiError& error) {
  finish_failed(error);
  ApiError own = error;
  if (own.param == "response_format") own.param = "text.format";
  return error_response(own);
}

}  // namespace quire::server
