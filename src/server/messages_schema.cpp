#include "server/messages_schema.h"

#include <limits>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "server/api_error.h"
#include "server/chat_fields.h"
#include "server/json_fields.h"
#include "server/refused_fields.h"

namespace quire::server {
namespace json = boost::json;

namespace {

constexpr RefusedField kRefusedMessageFields[] = {
    {"container", is_falsy, "this server runs no code"},
    {"mcp_servers", is_falsy, "this server calls no tools by itself"},
    {"context_management", is_falsy, "it is not built yet"},
    {"mm_processor_kwargs", is_falsy, "this server answers with text only"},
    {"kv_transfer_params", is_falsy, "/v1/completions and /v1/chat/completions take it"},
    {"ec_transfer_params", is_falsy, "it is not built yet"},
    {"watermarking", is_falsy, "it is not built yet"},
    {"stop", is_falsy, "stop_sequences says it here"},
    {"response_format", is_null, "output_config.format says it here"},
};

// ---------------------------------------------------------------------------------------------------------------
// messages

Result<std::string> type_of(const json::value& value) {
  const json::object* block = value.if_object();
  if (block == nullptr) return invalid_argument("a content block must be an object, got {}", describe(value));
  return string_of(*block, "type");
}

// The text of a string or of text blocks.
Result<std::string> text_of(const json::value& content) {
  if (content.is_string()) return std::string(std::string_view(content.get_string()));
  const json::array* blocks = content.if_array();
  if (blocks == nullptr) return invalid_argument("content must be a string or a list of content blocks");
  std::string text;
  for (const json::value& block : *blocks) {
    QUIRE_ASSIGN_OR_RETURN(const std::string type, type_of(block));
    if (type != "text") {
      return invalid_argument("content blocks of type {} are not supported here; supported: text", in_quotes(type, 40));
    }
    QUIRE_ASSIGN_OR_RETURN(const std::string piece, string_of(block.get_object(), "text"));
    if (!text.empty()) text.push_back('\n');
    text += piece;
  }
  return text;
}

// One message's blocks as chat messages: each tool's result is one of its own, before the text.
class MessageBlocks {
 public:
  MessageBlocks(std::string role, json::array& messages) : role_(std::move(role)), messages_(messages) {}

  Status add(const json::value& value) {
    QUIRE_ASSIGN_OR_RETURN(const std::string type, type_of(value));
    const json::object& block = value.get_object();
    const bool assistant = role_ == "assistant";
    if (type == "text") return add_text(block);
    if (assistant && type == "thinking") return add_thinking(block);
    if (assistant && type == "tool_use") return add_call(block);
    if (!assistant && type == "tool_result") return add_result(block);
    return invalid_argument("content blocks of type {} are not supported in a message of role {}; supported: text, {}",
                            in_quotes(type, 40), role_, assistant ? "thinking, tool_use" : "tool_result");
  }

  void finish() {
    const bool alone = calls_.empty() && !has_text_;
    if (alone && gave_results_) return;
    json::object message{{"role", role_}, {"content", text_}};
    if (!calls_.empty()) {
      if (!has_text_) message["content"] = nullptr;
      message["tool_calls"] = std::move(calls_);
    }
    if (!thinking_.empty()) message["reasoning_content"] = std::move(thinking_);
    messages_.emplace_back(std::move(message));
  }

 private:
  Status add_text(const json::object& block) {
    QUIRE_ASSIGN_OR_RETURN(const std::string piece, string_of(block, "text"));
    if (has_text_) text_.push_back('\n');
    text_ += piece;
    has_text_ = true;
    return {};
  }

  Status add_thinking(const json::object& block) {
    QUIRE_ASSIGN_OR_RETURN(const std::string piece, string_of(block, "thinking"));
    thinking_ += piece;
    return {};
  }

  Status add_call(const json::object& block) {
    QUIRE_ASSIGN_OR_RETURN(const std::string id, string_of(block, "id"));
    QUIRE_ASSIGN_OR_RETURN(const std::string name, string_of(block, "name"));
    const json::value* input = block.if_contains("input");
    if (input == nullptr || !input->is_object()) return invalid_argument("\"input\" must be an object");
    calls_.push_back(
        {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", json::serialize(*input)}}}});
    return {};
  }

  Status add_result(const json::object& block) {
    QUIRE_ASSIGN_OR_RETURN(const std::string id, string_of(block, "tool_use_id"));
    const json::value* content = block.if_contains("content");
    std::string text;
    if (content != nullptr && !content->is_null()) {
      QUIRE_ASSIGN_OR_RETURN(text, text_of(*content));
    }
    messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", text}});
    gave_results_ = true;
    return {};
  }

  const std::string role_;
  json::array& messages_;
  std::string text_;
  std::string thinking_;
  json::array calls_;
  bool has_text_ = false;
  bool gave_results_ = false;
};

Status add_message(const json::value& value, json::array& messages) {
  const json::object* message = value.if_object();
  if (message == nullptr) return invalid_argument("expected an object with role and content, got {}", describe(value));
  QUIRE_ASSIGN_OR_RETURN(const std::string role, string_of(*message, "role"));
  if (role != "user" && role != "assistant" && role != "system") {
    return invalid_argument("role must be user, assistant or system, got {}", in_quotes(role, 40));
  }
  const json::value* content = message->if_contains("content");
  if (content == nullptr) return invalid_argument("content is missing");
  const json::array* blocks = content->if_array();
  if (blocks == nullptr || role == "system") {
    QUIRE_ASSIGN_OR_RETURN(const std::string text, text_of(*content));
    messages.push_back({{"role", role}, {"content", text}});
    return {};
  }
  if (blocks->empty()) return invalid_argument("content must not be an empty list");
  MessageBlocks parts(role, messages);
  for (const json::value& block : *blocks) QUIRE_RETURN_IF_ERROR(parts.add(block));
  parts.finish();
  return {};
}

Status read_messages(const json::object& body, json::object& chat) {
  json::array messages;
  if (const json::value* system = body.if_contains("system"); system != nullptr && !system->is_null()) {
    auto text = text_of(*system);
    if (!text.ok()) return text.status().with_prefix("system: ").with_param("system");
    messages.push_back({{"role", "system"}, {"content", *text}});
  }
  const json::value* given = body.if_contains("messages");
  const json::array* list = given == nullptr ? nullptr : given->if_array();
  if (list == nullptr || list->empty()) {
    return invalid_argument("messages is required: a list of objects with role and content.").with_param("messages");
  }
  for (size_t i = 0; i < list->size(); ++i) {
    if (Status status = add_message((*list)[i], messages); !status.ok()) {
      return std::move(status).with_prefix(fmt::format("messages.{}: ", i)).with_param("messages");
    }
  }
  // A last message of the assistant's is the beginning of the answer.
  if (list->back().at("role") == "assistant") {
    chat["continue_final_message"] = true;
    chat["add_generation_prompt"] = false;
  }
  chat["messages"] = std::move(messages);
  return {};
}

// ---------------------------------------------------------------------------------------------------------------
// what chats spell differently

Status read_tools(JsonFields& fields, json::object& chat) {
  const json::array* tools = fields.array("tools");
  const json::object* choice = fields.object("tool_choice");
  QUIRE_RETURN_IF_ERROR(fields.status());
  if (tools != nullptr && !tools->empty()) {
    json::array functions;
    for (size_t i = 0; i < tools->size(); ++i) {
      const json::object* tool = (*tools)[i].if_object();
      const json::value* type = tool == nullptr ? nullptr : tool->if_contains("type");
      if (tool == nullptr || (type != nullptr && !type->is_null() && *type != "custom")) {
        return invalid_argument("tools.{}: only tools of the client's own (type \"custom\") are supported.", i)
            .with_param("tools");
      }
      json::object function;
      for (const auto& [theirs, ours] : {std::pair{"name", "name"}, std::pair{"description", "description"},
                                         std::pair{"input_schema", "parameters"}, std::pair{"strict", "strict"}}) {
        if (const json::value* value = tool->if_contains(theirs)) function[ours] = *value;
      }
      functions.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    chat["tools"] = std::move(functions);
  }
  if (choice == nullptr) return {};
  QUIRE_ASSIGN_OR_RETURN(const std::string type, string_of(*choice, "type"));
  if (type == "auto" || type == "none") {
    if (chat.contains("tools")) chat["tool_choice"] = type;
  } else if (type == "any") {
    chat["tool_choice"] = "required";
  } else if (type == "tool") {
    QUIRE_ASSIGN_OR_RETURN(const std::string name, string_of(*choice, "name"));
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", name}}}};
  } else {
    return invalid_argument("tool_choice.type must be auto, any, tool or none, got {}.", in_quotes(type, 40))
        .with_param("tool_choice");
  }
  JsonFields inner(*choice, "tool_choice.");
  if (const auto alone = inner.boolean("disable_parallel_tool_use"); alone && chat.contains("tools")) {
    chat["parallel_tool_calls"] = !*alone;
  }
  return inner.status();
}

Status read_thinking(JsonFields& fields, json::object& chat) {
  const json::object* thinking = fields.object("thinking");
  QUIRE_RETURN_IF_ERROR(fields.status());
  if (thinking == nullptr) return {};
  JsonFields inner(*thinking, "thinking.");
  const std::string type = inner.string("type").value_or("");
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    inner.fail("type", "thinking.type must be enabled, disabled or adaptive.");
  }
  const auto budget = inner.integer("budget_tokens", 1, std::numeric_limits<int32_t>::max());
  if (type == "enabled" && !budget) inner.fail("budget_tokens", "thinking.budget_tokens is required.");
  if (budget) chat["thinking_token_budget"] = *budget;
  const std::string display = inner.string("display").value_or("summarized");
  if (display == "omitted") chat["include_reasoning"] = false;
  QUIRE_RETURN_IF_ERROR(inner.status());
  // What the templates of models that can do both call it.
  json::value& variables = chat.emplace("chat_template_kwargs", json::object()).first->value();
  if (variables.is_null()) variables = json::object();
  if (variables.is_object()) variables.get_object().emplace("enable_thinking", type != "disabled");
  return {};
}

Status read_output_config(JsonFields& fields, json::object& chat) {
  const json::object* config = fields.object("output_config");
  QUIRE_RETURN_IF_ERROR(fields.status());
  if (config == nullptr) return {};
  JsonFields inner(*config, "output_config.");
  if (const auto effort = inner.string("effort")) chat["reasoning_effort"] = *effort;
  if (const json::object* format = inner.object("format")) {
    const json::value* schema = format->if_contains("schema");
    const json::value* type = format->if_contains("type");
    if (type == nullptr || *type != "json_schema" || schema == nullptr) {
      return invalid_argument("output_config.format must have the type \"json_schema\" and a schema.")
          .with_param("output_config");
    }
    chat["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "answer"}, {"schema", *schema}}}};
  }
  return inner.status();
}

Status check_known(JsonFields& fields) {
  const std::string tier = fields.string("service_tier").value_or("auto");
  if (tier != "auto" && tier != "standard_only") {
    fields.fail("service_tier", "service_tier must be auto or standard_only.");
  }
  if (const json::object* metadata = fields.object("metadata")) {
    JsonFields inner(*metadata, "metadata.");
    inner.string("user_id");
    QUIRE_RETURN_IF_ERROR(inner.status());
  }
  return fields.status();
}

}  // namespace

Status with_messages_param(Status status) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"stop", "stop_sequences"}, {"response_format", "output_config"}, {"thinking_token_budget", "thinking"}};
  for (const auto& [chat, own] : kNames) {
    if (status.param() == chat) return std::move(status).with_param(std::string(own));
  }
  return status;
}

Result<ChatRequest> parse_messages_request(const json::object& body, bool counted, const SchemaLimits& limits) {
  QUIRE_RETURN_IF_ERROR(check_refused(body, kRefusedMessageFields));
  QUIRE_RETURN_IF_ERROR(check_refused(body, kRefusedOutsideChats));
  JsonFields fields(body);
  json::object chat;
  for (const char* name : kFieldsOfChats) {
    if (const json::value* value = fields.any(name)) chat[name] = *value;
  }
  if (counted) chat.erase("stream");
  const auto most = fields.integer("max_tokens", 1, std::numeric_limits<int32_t>::max());
  QUIRE_RETURN_IF_ERROR(fields.status());
  if (most) {
    chat["max_tokens"] = *most;
  } else if (!counted) {
    return invalid_argument("max_tokens is required: the most tokens that the answer may have.")
        .with_param("max_tokens");
  }
  if (const json::array* stop = fields.array("stop_sequences"); stop != nullptr && !stop->empty()) {
    chat["stop"] = *stop;
  }
  QUIRE_RETURN_IF_ERROR(check_known(fields));
  QUIRE_RETURN_IF_ERROR(read_messages(body, chat));
  QUIRE_RETURN_IF_ERROR(read_tools(fields, chat));
  QUIRE_RETURN_IF_ERROR(read_thinking(fields, chat));
  QUIRE_RETURN_IF_ERROR(read_output_config(fields, chat));
  auto parsed = parse_chat_request(chat, limits);
  if (!parsed.ok()) return with_messages_param(parsed.status());
  return parsed;
}

}  // namespace quire::server
