#include "server/responses_schema.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "server/api_error.h"
#include "server/chat_fields.h"
#include "server/json_fields.h"
#include "server/metadata.h"
#include "server/random_id.h"
#include "server/refused_fields.h"

namespace quire::server {
namespace json = boost::json;

namespace {

bool is_disabled_obfuscation(const json::value& v) {
  const json::object* object = v.if_object();
  return v.is_null() || (object != nullptr &&
                         (!object->contains("include_obfuscation") || is_falsy(object->at("include_obfuscation"))));
}

constexpr RefusedField kRefusedResponseFields[] = {
    {"conversation", is_falsy, "conversations are not kept here; previous_response_id goes on from a response"},
    {"prompt", is_falsy, "there are no stored prompts here"},
    {"max_tool_calls", is_null, "this server calls no tools by itself"},
    {"moderation", is_falsy, "this server does not moderate"},
    {"context_management", is_falsy, "it is not built yet"},
    {"stream_options", is_disabled_obfuscation, "obfuscation is not built"},
    {"response_format", is_null, "text.format says it here"},
    {"previous_input_messages", is_falsy, "it is not built yet"},
    {"enable_response_messages", is_falsy, "it is not built yet"},
    {"mm_processor_kwargs", is_falsy, "this server answers with text only"},
    {"media_io_kwargs", is_falsy, "this server answers with text only"},
    {"watermarking", is_falsy, "it is not built yet"},
    {"kv_transfer_params", is_falsy, "/v1/completions and /v1/chat/completions take it"},
    {"ec_transfer_params", is_falsy, "it is not built yet"},
};

// ---------------------------------------------------------------------------------------------------------------
// items

Status at_item(size_t index, Status status) {
  return std::move(status).with_prefix(fmt::format("input[{}]: ", index)).with_param("input");
}

// The text of a string or of parts that hold text.
Result<std::string> text_of(const json::object& item, const char* field) {
  const json::value* content = item.if_contains(field);
  if (content == nullptr) return invalid_argument("{} is missing", field);
  if (content->is_string()) return std::string(std::string_view(content->get_string()));
  const json::array* parts = content->if_array();
  if (parts == nullptr) return invalid_argument("{} must be a string or a list of parts", field);
  std::string text;
  for (const json::value& value : *parts) {
    const json::object* part = value.if_object();
    const json::value* type = part == nullptr ? nullptr : part->if_contains("type");
    if (type == nullptr || !type->is_string()) return invalid_argument("a part must be an object with a type");
    const std::string_view kind = type->get_string();
    const char* name = kind == "refusal" ? "refusal" : "text";
    if (kind != "input_text" && kind != "output_text" && kind != "text" && kind != "refusal" &&
        kind != "reasoning_text" && kind != "summary_text") {
      return invalid_argument("parts of type {} are not supported by this model; supported: input_text, output_text",
                              in_quotes(kind, 40));
    }
    const json::value* part_text = part->if_contains(name);
    if (part_text == nullptr || !part_text->is_string()) {
      return invalid_argument("a part of type {} must have a \"{}\" string", kind, name);
    }
    if (!text.empty()) text.push_back('\n');
    text += part_text->get_string();
  }
  return text;
}

// Makes chat messages of items: calls and reasoning belong to the assistant's message around them.
class Conversation {
 public:
  explicit Conversation(json::array& messages) : messages_(messages) {}

  Status add(const json::object& item) {
    const json::value* type = item.if_contains("type");
    if (type != nullptr && !type->is_string()) return invalid_argument("\"type\" must be a string");
    const std::string_view kind = type == nullptr ? std::string_view("message") : std::string_view(type->get_string());
    if (kind == "message") return add_message(item);
    if (kind == "function_call") return add_call(item);
    if (kind == "function_call_output") return add_output(item);
    if (kind == "reasoning") return add_reasoning(item);
    return invalid_argument(
        "items of type {} are not supported; supported: message, function_call, function_call_output, reasoning",
        in_quotes(kind, 40));
  }

 private:
  Status add_message(const json::object& item) {
    QUIRE_ASSIGN_OR_RETURN(std::string role, string_of(item, "role"));
    if (role == "developer") role = "system";  // what templates call it
    if (role != "user" && role != "assistant" && role != "system") {
      return invalid_argument("\"role\" must be user, assistant, system or developer, got {}", in_quotes(role, 40));
    }
    QUIRE_ASSIGN_OR_RETURN(std::string text, text_of(item, "content"));
    if (role != "assistant") {
      // What was thought and led to nothing is of the turn before.
      if (is_open()) take_reasoning(messages_.back().get_object());
      reasoning_.clear();
      messages_.push_back({{"role", role}, {"content", std::move(text)}});
      return {};
    }
    // What is said beside calls belongs to their message, which their results follow.
    if (is_open() && messages_.back().get_object().contains("tool_calls")) {
      json::object& message = messages_.back().get_object();
      take_reasoning(message);
      if (const json::value& said = message.at("content"); said.is_string() && !said.get_string().empty())
        text = std::string(said.get_string()) + "\n" + text;
      message["content"] = std::move(text);
      return {};
    }
    json::object message{{"role", role}, {"content", std::move(text)}};
    take_reasoning(message);
    messages_.emplace_back(std::move(message));
    return {};
  }

  Status add_call(const json::object& item) {
    QUIRE_ASSIGN_OR_RETURN(std::string id, string_of(item, "call_id"));
    QUIRE_ASSIGN_OR_RETURN(std::string name, string_of(item, "name"));
    QUIRE_ASSIGN_OR_RETURN(std::string arguments, string_of(item, "arguments"));
    if (!is_open()) messages_.push_back({{"role", "assistant"}, {"content", nullptr}});
    json::object& message = messages_.back().get_object();
    take_reasoning(message);
    json::value& calls = message.emplace("tool_calls", json::array()).first->value();
    calls.get_array().push_back(
        {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}});
    return {};
  }

  Status add_output(const json::object& item) {
    QUIRE_ASSIGN_OR_RETURN(std::string id, string_of(item, "call_id"));
    QUIRE_ASSIGN_OR_RETURN(std::string text, text_of(item, "output"));
    messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", text}});
    return {};
  }

  Status add_reasoning(const json::object& item) {
    const json::value* content = item.if_contains("content");
    QUIRE_ASSIGN_OR_RETURN(const std::string text,
                           text_of(item, content != nullptr && !content->is_null() ? "content" : "summary"));
    if (!reasoning_.empty() && !text.empty()) reasoning_ += "\n";
    reasoning_ += text;
    return {};
  }

  bool is_open() const { return !messages_.empty() && messages_.back().at("role") == "assistant"; }

  void take_reasoning(json::object& message) {
    if (reasoning_.empty()) return;
    json::value& thought = message["reasoning_content"];
    std::string before = thought.is_string() ? std::string(thought.get_string()) + "\n" : std::string();
    thought = before + std::exchange(reasoning_, {});
  }

  json::array& messages_;
  std::string reasoning_;
};

// An item as it is listed: with an id and a status, its content as parts.
json::object listed(const json::object& item) {
  json::object out = item;
  const json::value* type = item.if_contains("type");
  if (type == nullptr) out["type"] = "message";
  const bool message = out["type"] == "message";
  if (!out.contains("id") || !out["id"].is_string()) out["id"] = random_id(message ? "msg_" : "item_");
  if (!message) return out;
  out["status"] = "completed";
  if (out["content"].is_string()) {
    const bool assistant = out["role"] == "assistant";
    json::object part{{"type", assistant ? "output_text" : "input_text"}, {"text", out["content"]}};
    if (assistant) part["annotations"] = json::array();
    out["content"] = json::array{std::move(part)};
  }
  return out;
}

Status read_input(const json::object& body, ResponsesRequest& request) {
  const json::value* input = body.if_contains("input");
  if (input == nullptr || input->is_null()) {
    return invalid_argument("input is required: a string or a list of items.").with_param("input");
  }
  Conversation conversation(request.conversation);
  if (input->is_string()) {
    const json::object item{{"type", "message"}, {"role", "user"}, {"content", *input}};
    request.input_items.emplace_back(listed(item));
    return conversation.add(item);
  }
  const json::array* items = input->if_array();
  if (items == nullptr || items->empty()) {
    return invalid_argument("input must be a string or a list of items that is not empty, got {}.",
                            items == nullptr ? describe(*input) : "an empty list")
        .with_param("input");
  }
  for (size_t i = 0; i < items->size(); ++i) {
    const json::object* item = (*items)[i].if_object();
    if (item == nullptr)
      return at_item(i, invalid_argument("an item must be an object, got {}", describe((*items)[i])));
    if (Status status = conversation.add(*item); !status.ok()) return at_item(i, std::move(status));
    request.input_items.emplace_back(listed(*item));
  }
  return {};
}

// ---------------------------------------------------------------------------------------------------------------
// what chats spell differently

// {"type": "json_schema", "name", "schema", ...}: a chat has one more object around them.
Status read_text(JsonFields& fields, json::object& chat, json::object& echo) {
  json::object text{{"format", {{"type", "text"}}}};
  if (const json::object* given = fields.object("text")) {
    JsonFields inner(*given, "text.");
    if (const auto verbosity = inner.string("verbosity"); verbosity && *verbosity != "medium") {
      inner.fail("verbosity", "text.verbosity may only be \"medium\": models here know no other.");
    }
    if (const json::object* format = inner.object("format")) {
      text["format"] = *format;
      const json::value* type = format->if_contains("type");
      if (type != nullptr && type->is_string() && type->get_string() == "json_schema") {
        json::object schema = *format;
        schema.erase("type");
        chat["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
      } else {
        chat["response_format"] = *format;
      }
    }
    QUIRE_RETURN_IF_ERROR(inner.status());
  }
  echo["text"] = std::move(text);
  return fields.status();
}

// A function's fields lie one level deeper in a chat.
json::object nested_function(const json::object& flat) {
  json::object function = flat;
  function.erase("type");
  return {{"type", "function"}, {"function", std::move(function)}};
}

Status read_tools(JsonFields& fields, json::object& chat, json::object& echo) {
  const json::array* tools = fields.array("tools");
  const json::value* choice = fields.any("tool_choice");
  QUIRE_RETURN_IF_ERROR(fields.status());
  echo["tools"] = tools == nullptr ? json::array() : *tools;
  echo["tool_choice"] = choice == nullptr || choice->is_null() ? json::value("auto") : *choice;
  echo["parallel_tool_calls"] = fields.boolean("parallel_tool_calls").value_or(true);
  const bool idle = choice == nullptr || choice->is_null() || *choice == "auto" || *choice == "none";
  if (tools == nullptr || tools->empty()) {
    if (idle) return {};
    return invalid_argument("tool_choice needs tools.").with_param("tool_choice");
  }
  json::array nested;
  for (size_t i = 0; i < tools->size(); ++i) {
    const json::object* tool = (*tools)[i].if_object();
    const json::value* type = tool == nullptr ? nullptr : tool->if_contains("type");
    if (type == nullptr || *type != "function") {
      return invalid_argument("tools[{}]: only tools of type \"function\" are supported.", i).with_param("tools");
    }
    nested.emplace_back(nested_function(*tool));
  }
  chat["tools"] = std::move(nested);
  if (choice != nullptr && !choice->is_null()) {
    chat["tool_choice"] = choice->is_object() ? json::value(nested_function(choice->get_object())) : *choice;
  }
  if (const json::value* parallel = fields.any("parallel_tool_calls")) chat["parallel_tool_calls"] = *parallel;
  return {};
}

Status read_reasoning(JsonFields& fields, json::object& chat, json::object& echo) {
  json::object reasoning{{"effort", nullptr}, {"summary", nullptr}};
  if (const json::object* given = fields.object("reasoning")) {
    JsonFields inner(*given, "reasoning.");
    if (const auto effort = inner.string("effort")) {
      reasoning["effort"] = *effort;
      chat["reasoning_effort"] = *effort;
    }
    for (const char* name : {"summary", "generate_summary"}) {
      if (inner.string(name)) inner.fail(name, fmt::format("reasoning.{}: reasoning is not summarised here.", name));
    }
    QUIRE_RETURN_IF_ERROR(inner.status());
  }
  echo["reasoning"] = std::move(reasoning);
  return fields.status();
}

Status read_logprobs(JsonFields& fields, json::object& chat, json::object& echo) {
  bool asked = false;
  if (const json::array* include = fields.array("include")) {
    for (const json::value& item : *include) {
      if (item != "message.output_text.logprobs") {
        return invalid_argument("include may only hold \"message.output_text.logprobs\", got {}.", describe(item))
            .with_param("include");
      }
      asked = true;
    }
  }
  const auto top = fields.integer("top_logprobs", -1, std::numeric_limits<int32_t>::max());
  QUIRE_RETURN_IF_ERROR(fields.status());
  if (top.value_or(0) != 0 && !asked) {
    return invalid_argument("top_logprobs needs \"message.output_text.logprobs\" in include.")
        .with_param("top_logprobs");
  }
  if (asked) {
    chat["logprobs"] = true;
    chat["top_logprobs"] = top.value_or(0);
  }
  echo["top_logprobs"] = top.value_or(0);
  return {};
}

void read_kept(JsonFields& fields, ResponsesRequest& request) {
  request.store = fields.boolean("store").value_or(true);
  request.background = fields.boolean("background").value_or(false);
  if (request.background && !request.store) {
    fields.fail("background", "background needs store: nobody could fetch the answer.");
  }
  if (request.background && fields.boolean("stream").value_or(false)) {
    fields.fail("stream", "A response in the background cannot be streamed: fetch it with GET /v1/responses/{id}.");
  }
  const std::string truncation = fields.string("truncation").value_or("disabled");
  if (truncation != "auto" && truncation != "disabled") {
    fields.fail("truncation",
                fmt::format("truncation must be \"auto\" or \"disabled\", got {}.", in_quotes(truncation, 40)));
  }
  request.truncate = truncation == "auto";
  const std::string tier = fields.string("service_tier").value_or("auto");
  if (tier != "auto" && tier != "default") {
    fields.fail("service_tier", fmt::format("service_tier may only be \"auto\" or \"default\": there is no {} here.",
                                            in_quotes(tier, 40)));
  }
  request.echo["truncation"] = truncation;
  request.echo["service_tier"] = "default";
  request.echo["store"] = request.store;
  request.echo["background"] = request.background;
  for (const char* name : {"user", "safety_identifier", "prompt_cache_key"}) {
    const auto text = fields.string(name);
    request.echo[name] = text ? json::value(*text) : json::value(nullptr);
  }
}

}  // namespace

Status with_responses_param(Status status) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"messages", "input"}, {"max_tokens", "max_output_tokens"}, {"response_format", "text.format"}};
  for (const auto& [chat, own] : kNames) {
    if (status.param() == chat) return std::move(status).with_param(std::string(own));
  }
  return status;
}

Result<std::string> previous_response_id(const json::object& body) {
  JsonFields fields(body);
  std::string id = fields.string("previous_response_id").value_or("");
  QUIRE_RETURN_IF_ERROR(fields.status());
  return id;
}

Result<ResponsesRequest> parse_responses_request(const json::object& body, json::array previous,
                                                 const SchemaLimits& limits) {
  QUIRE_RETURN_IF_ERROR(check_refused(body, kRefusedResponseFields));
  QUIRE_RETURN_IF_ERROR(check_refused(body, kRefusedOutsideChats));
  ResponsesRequest request;
  JsonFields fields(body);
  request.conversation = std::move(previous);
  QUIRE_ASSIGN_OR_RETURN(request.previous_response_id, previous_response_id(body));
  QUIRE_RETURN_IF_ERROR(read_input(body, request));

  json::object chat;
  for (const char* name : kFieldsOfChats) {
    if (const json::value* value = fields.any(name)) chat[name] = *value;
  }
  if (const json::value* stop = fields.any("stop")) chat["stop"] = *stop;
  json::object& echo = request.echo;
  read_kept(fields, request);
  const json::value metadata = read_metadata(fields);
  echo["metadata"] = metadata.is_null() ? json::value(json::object()) : metadata;
  QUIRE_RETURN_IF_ERROR(read_text(fields, chat, echo));
  QUIRE_RETURN_IF_ERROR(read_tools(fields, chat, echo));
  QUIRE_RETURN_IF_ERROR(read_reasoning(fields, chat, echo));
  QUIRE_RETURN_IF_ERROR(read_logprobs(fields, chat, echo));
  if (const auto most = fields.integer("max_output_tokens", 1, std::numeric_limits<int32_t>::max())) {
    chat["max_tokens"] = *most;
    echo["max_output_tokens"] = *most;
  } else {
    echo["max_output_tokens"] = nullptr;
  }
  json::array messages;
  echo["instructions"] = nullptr;
  if (const auto instructions = fields.string("instructions")) {
    echo["instructions"] = *instructions;
    messages.push_back({{"role", "system"}, {"content", *instructions}});
    request.num_instructions = 1;
  }
  QUIRE_RETURN_IF_ERROR(fields.status());
  messages.insert(messages.end(), request.conversation.begin(), request.conversation.end());
  chat["messages"] = std::move(messages);

  auto parsed = parse_chat_request(chat, limits);
  if (!parsed.ok()) return with_responses_param(parsed.status());
  request.chat = std::move(*parsed);
  request.chat.options.max_tokens_field = "max_output_tokens";
  echo["temperature"] = request.chat.options.params.temperature;
  echo["top_p"] = request.chat.options.params.top_p;
  echo["max_tool_calls"] = nullptr;
  echo["previous_response_id"] =
      request.previous_response_id.empty() ? json::value(nullptr) : json::value(request.previous_response_id);
  return request;
}

}  // namespace quire::server
