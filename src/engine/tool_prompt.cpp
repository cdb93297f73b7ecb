#include "engine/tool_prompt.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/parse_json.h"

namespace quire::engine {
namespace json = boost::json;

namespace {

std::string described(const json::array& tools, grammar::ToolFormat format) {
  std::string out = "You may call functions to help with the request. The functions, one a line, as JSON:\n<tools>\n";
  for (const json::value& tool : tools) out += json::serialize(tool) + "\n";
  out += "</tools>\nTo call one, answer with its name and its arguments in this form, and nothing else:\n" +
         grammar::calls_text(format, {{"function_name", {{"parameter", "value"}}}});
  return out;
}

std::string text_of(const json::object& message) {
  const json::value* content = message.if_contains("content");
  if (content == nullptr) return {};
  if (content->is_string()) return std::string(content->get_string());
  std::string out;
  if (const auto* parts = content->if_array()) {
    for (const json::value& part : *parts) {
      const auto* object = part.if_object();
      const json::value* text = object == nullptr ? nullptr : object->if_contains("text");
      if (text != nullptr && text->is_string()) out += text->get_string();
    }
  }
  return out;
}

std::string calls_of(const json::object& message, grammar::ToolFormat format) {
  const json::value* calls = message.if_contains("tool_calls");
  if (calls == nullptr || !calls->is_array()) return {};
  std::vector<std::pair<std::string, json::object>> written;
  for (const json::value& call : calls->get_array()) {
    const auto* object = call.if_object();
    const json::value* function = object == nullptr ? nullptr : object->if_contains("function");
    if (function == nullptr || !function->is_object()) continue;
    const json::value* name = function->get_object().if_contains("name");
    const json::value* arguments = function->get_object().if_contains("arguments");
    written.emplace_back(name != nullptr && name->is_string() ? std::string(name->get_string()) : std::string(),
                         arguments != nullptr && arguments->is_object() ? arguments->get_object() : json::object());
  }
  return written.empty() ? std::string() : "\n" + grammar::calls_text(format, written);
}

}  // namespace

void parse_call_arguments(json::object& message) {
  json::value* calls = message.if_contains("tool_calls");
  if (calls == nullptr || !calls->is_array()) return;
  for (json::value& call : calls->get_array()) {
    auto* object = call.if_object();
    json::value* function = object == nullptr ? nullptr : object->if_contains("function");
    if (function == nullptr || !function->is_object()) continue;
    json::value* arguments = function->get_object().if_contains("arguments");
    if (arguments == nullptr || !arguments->is_string()) continue;
    boost::system::error_code error;
    json::value parsed = parse_json(arguments->get_string(), error);
    if (!error && parsed.is_object()) *arguments = std::move(parsed);
  }
}

bool has_calls(const json::array& messages) {
  return std::ranges::any_of(messages, [](const json::value& value) {
    const auto* message = value.if_object();
    const json::value* role = message == nullptr ? nullptr : message->if_contains("role");
    return message != nullptr && (message->contains("tool_calls") || (role != nullptr && *role == "tool"));
  });
}

json::array with_tools_in_words(const json::array& messages, const json::array& tools, grammar::ToolFormat format) {
  json::array out;
  const auto is_role = [](const json::object& message, std::string_view role) {
    const json::value* found = message.if_contains("role");
    return found != nullptr && found->is_string() && found->get_string() == role;
  };
  bool described_yet = tools.empty();
  for (const json::value& value : messages) {
    const auto* message = value.if_object();
    if (message == nullptr) {
      out.emplace_back(value);
      continue;
    }
    if (!described_yet) {
      const bool system = is_role(*message, "system") || is_role(*message, "developer");
      std::string text = described(tools, format);
      if (system) text = text_of(*message) + "\n\n" + text;
      out.push_back(json::object{{"role", "system"}, {"content", std::move(text)}});
      described_yet = true;
      if (system) continue;
    }
    json::object copy = *message;
    if (is_role(copy, "assistant") && copy.contains("tool_calls")) {
      parse_call_arguments(copy);
      copy["content"] = text_of(copy) + calls_of(copy, format);
      copy.erase("tool_calls");
    } else if (is_role(copy, "tool")) {
      copy = {{"role", "user"}, {"content", "<tool_response>\n" + text_of(copy) + "\n</tool_response>"}};
    }
    out.emplace_back(std::move(copy));
  }
  return out;
}

}  // namespace quire::engine
