#include "engine/chat.h"

#include <algorithm>
#include <array>
#include <optional>

#include "engine/tool_prompt.h"
#include "text/jinja_text.h"

namespace quire::engine {
namespace {

namespace json = boost::json;

Status at_message(size_t index, Status status) {
  return std::move(status).with_prefix("messages[" + std::to_string(index) + "]: ").with_param("messages");
}

// An object of a type that is text, or, as vLLM takes it, the text itself.
Result<std::string_view> part_text(const json::value& part) {
  if (part.is_string()) return std::string_view(part.get_string());
  const json::object* object = part.if_object();
  const json::value* type = object != nullptr ? object->if_contains("type") : nullptr;
  if (type == nullptr || !type->is_string()) {
    return invalid_argument("a content part must be an object with a type, or a string");
  }
  const std::string_view kind = type->get_string();
  const bool refuses = kind == "refusal";  // an assistant's, of an earlier answer
  if (kind != "text" && kind != "input_text" && kind != "output_text" && !refuses) {
    return unimplemented("content parts of type \"{}\" are not supported by this model; supported: text",
                         kind.substr(0, 40));
  }
  const char* name = refuses ? "refusal" : "text";
  const json::value* text = object->if_contains(name);
  if (text == nullptr || !text->is_string()) {
    return invalid_argument("a content part of type {0} must have a \"{0}\" string", name);
  }
  return std::string_view(text->get_string());
}

// A list of parts becomes their texts, a line each.
Result<json::string> joined_parts(const json::array& parts) {
  json::string text;
  bool first = true;
  for (const json::value& part : parts) {
    QUIRE_ASSIGN_OR_RETURN(const std::string_view more, part_text(part));
    if (!first) text.push_back('\n');
    first = false;
    text += more;
  }
  return text;
}

// What an assistant thought is given to templates by both names that they know it by: vLLM's and DeepSeek's.
Status name_reasoning(json::object& message) {
  constexpr std::array<const char*, 2> kNames = {"reasoning", "reasoning_content"};
  const json::value* found = nullptr;
  for (const char* name : kNames) {
    const json::value* value = message.if_contains(name);
    if (value == nullptr || value->is_null()) continue;
    if (!value->is_string()) return invalid_argument("\"{}\" must be a string", name);
    if (found == nullptr) found = value;
  }
  if (found == nullptr) return {};
  const json::value thought = *found;
  for (const char* name : kNames) {
    json::value& value = message[name];
    if (value.is_null()) value = thought;
  }
  return {};
}

Result<json::object> checked_message(const json::value& value) {
  const json::object* message = value.if_object();
  if (message == nullptr) return invalid_argument("expected an object with \"role\" and \"content\"");
  const json::value* role = message->if_contains("role");
  if (role == nullptr || !role->is_string() || role->get_string().empty()) {
    return invalid_argument("\"role\" must be a string that is not empty");
  }
  json::object out = *message;
  const json::value* content = message->if_contains("content");
  parse_call_arguments(out);
  if (role->get_string() == "assistant") QUIRE_RETURN_IF_ERROR(name_reasoning(out));
  if (role->get_string() == "assistant" && (content == nullptr || content->is_null())) {
    // An assistant's tool calls may stand alone; one that has said nothing has said an empty text.
    if (!message->contains("tool_calls")) out["content"] = "";
    return out;
  }
  if (content == nullptr) return invalid_argument("\"content\" is missing");
  if (content->is_null() && role->get_string() != "tool") {
    return invalid_argument("\"content\" is null, which only an assistant's or a tool's may be");
  }
  if (const json::array* parts = content->if_array()) {
    QUIRE_ASSIGN_OR_RETURN(json::string text, joined_parts(*parts));
    out["content"] = std::move(text);
  } else if (!content->is_string() && !content->is_null()) {
    return invalid_argument("\"content\" must be a string or a list of parts");
  }
  return out;
}

bool speaks_as(const json::object& message, std::string_view role) {
  return std::string_view(message.at("role").get_string()) == role;
}

std::string_view content_of(const json::object& message) {
  const json::value* content = message.if_contains("content");
  return content != nullptr && content->is_string() ? std::string_view(content->get_string()) : std::string_view();
}

// A developer's messages for a template that knows no such role, and would drop them or refuse: they are a system's, as
// they were before OpenAI renamed the role. Those that begin the conversation become one with the system message there,
// because many templates take one, and as the first alone. `told`: their texts, which must be in the prompt.
json::array as_system(const json::array& messages, std::vector<std::string>& told) {
  json::array out;
  bool leads = true;  // nothing but systems and developers so far
  for (const json::value& value : messages) {
    json::object message = value.get_object();
    const bool is_developer = speaks_as(message, "developer");
    leads = leads && (is_developer || speaks_as(message, "system"));
    if (is_developer) {
      message["role"] = "system";
      told.emplace_back(text::jinja::trim_spaces(content_of(message)));
    }
    if (leads && !out.empty() && !told.empty()) {
      json::object& first = out.back().get_object();
      first["content"] = std::string(content_of(first)) + "\n\n" + std::string(content_of(message));
      continue;
    }
    out.emplace_back(std::move(message));
  }
  return out;
}

// Stands behind the text of a message that is to be continued while the template is rendered, as in transformers. Its
// last space tells whether the template takes spaces off.
constexpr std::string_view kOpenEnd = "QUIRE_CONTINUES_HERE ";

Status mark_open_end(json::object& last) {
  json::value* content = last.if_contains("content");
  if (content == nullptr || !content->is_string()) {
    return invalid_argument("continue_final_message needs a last message with text").with_param("messages");
  }
  content->get_string() += kOpenEnd;
  return {};
}

// Cuts the rendered prompt at the mark, so that the model goes on with the message's `content`.
Status leave_open(std::string_view content, std::vector<text::TextPiece>& pieces) {
  const std::string whole = text::concatenate(pieces);
  const std::string_view mark = text::jinja::trim_spaces(kOpenEnd);
  const size_t found = text::jinja::ReverseFinder(mark).find(whole);
  const bool whole_content = text::jinja::Finder(text::jinja::trim_spaces(content)).find(whole, 0) != std::string::npos;
  if (found == std::string::npos || !whole_content) {
    return invalid_argument(
               "continue_final_message: the chat template changes the last message, so that it cannot be continued")
        .with_param("continue_final_message");
  }
  std::string_view kept = std::string_view(whole).substr(0, found);
  const bool keeps_spaces = std::string_view(whole).substr(found).starts_with(kOpenEnd);
  if (!keeps_spaces) kept = text::jinja::trim_spaces_right(kept);
  size_t keep = kept.size();
  for (text::TextPiece& piece : pieces) {
    piece.text.resize(std::min(piece.text.size(), keep));
    keep -= piece.text.size();
  }
  return {};
}

}  // namespace

Result<ChatPrompt> render_chat(const Engine& engine, const json::array& messages, const ChatOptions& options) {
  if (engine.tokenizer() == nullptr) {
    return unimplemented("chat needs a tokenizer, and this engine runs without one (--skip-tokenizer-init)");
  }
  std::optional<text::ChatTemplate> given;
  if (!options.chat_template.empty()) {
    auto parsed = text::ChatTemplate::parse(options.chat_template);
    if (!parsed.ok()) return parsed.status().with_prefix("chat_template: ").with_param("chat_template");
    given.emplace(std::move(*parsed));
  } else if (engine.chat_template() == nullptr) {
    return unimplemented("this model has no chat template; name one with --chat-template, or use completions");
  }
  if (messages.empty()) return invalid_argument("messages must not be empty").with_param("messages");
  if (options.add_generation_prompt && options.continue_final_message) {
    return invalid_argument("add_generation_prompt and continue_final_message exclude each other")
        .with_param("continue_final_message");
  }
  json::array checked;
  for (size_t i = 0; i < messages.size(); ++i) {
    auto message = checked_message(messages[i]);
    if (!message.ok()) return at_message(i, message.status());
    checked.emplace_back(std::move(*message));
  }
  const std::string& source = given ? options.chat_template : engine.text().chat_template;
  std::vector<std::string> told;
  if (source.find("developer") == std::string::npos) checked = as_system(checked, told);
  json::string left_open;
  if (options.continue_final_message) {
    json::object& last = checked[checked.size() - 1].get_object();
    left_open = content_of(last);
    QUIRE_RETURN_IF_ERROR(mark_open_end(last));
  }
  json::object variables = options.variables;
  // Templates of the reference's world ask whether these are none, not whether they are defined.
  for (const char* name : {"tools", "documents"}) variables.emplace(name, nullptr);
  variables["messages"] = std::move(checked);
  const json::object trusted = {{"add_generation_prompt", options.add_generation_prompt},
                                {"bos_token", engine.text().bos_token},
                                {"eos_token", engine.text().eos_token}};
  auto pieces = (given ? *given : *engine.chat_template()).render(variables, trusted, options.max_template_time);
  if (!pieces.ok()) {
    return pieces.status().with_prefix("chat template: ").with_param(given ? "chat_template" : "messages");
  }
  if (!told.empty()) {
    const std::string whole = text::concatenate(*pieces);
    for (const std::string& text : told) {
      if (text::jinja::Finder(text).find(whole, 0) != std::string::npos) continue;
      return invalid_argument(
                 "the chat template knows no role developer, and leaves such a message out where it is given as a "
                 "system's. Put it at the beginning, or give it the role user")
          .with_param("messages");
    }
  }
  if (options.continue_final_message) QUIRE_RETURN_IF_ERROR(leave_open(left_open, *pieces));
  ChatPrompt prompt;
  prompt.text = text::concatenate(*pieces);
  if (options.check_text) QUIRE_RETURN_IF_ERROR(options.check_text(prompt.text.size()));
  // The template writes the beginning-of-sequence token itself where the model wants one.
  QUIRE_ASSIGN_OR_RETURN(prompt.ids,
                         engine.tokenizer()->encode_within(*pieces, /*add_special_tokens=*/false, options.encode));
  return prompt;
}

}  // namespace quire::engine
