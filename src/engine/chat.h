// From a conversation to prompt tokens: the model's template, then its tokenizer, with the user's
// text untrusted.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"
#include "engine/engine.h"

namespace quire::engine {

struct ChatPrompt {
  std::string text;  // as rendered
  std::vector<TokenId> ids;
};

struct ChatOptions {
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the last message is left open, for the model to go on with
  std::string chat_template;            // of the request, in the place of the model's; empty: the model's
  boost::json::object variables;        // more template variables (chat_template_kwargs, tools, documents); cannot
                                        // override messages, add_generation_prompt or the special tokens
  std::chrono::milliseconds max_template_time = std::chrono::milliseconds::max();  // where templates may take more
  std::function<Status(size_t bytes)> check_text;  // of the rendered text, before it is tokenized; empty: all is well
  text::EncodeLimits encode;
};

// `messages`: OpenAI's list of {"role", "content", ...}; content may be a string or a list of
// {"type": "text", "text"} parts or of strings (joined by newlines); null content stays null and is an assistant's
// or a tool's alone. An assistant's "reasoning" or "reasoning_content" is there by both names. A message of the role
// "developer" is a system's where the template does not speak of developers. Errors: invalid_argument ("messages" at
// fault: empty, no role, content of another type; the template's own refusal; "chat_template": the request's template
// is none, or refuses); check_text's; deadline_exceeded: options.encode is over; unimplemented when the model has no
// chat template or no tokenizer.
Result<ChatPrompt> render_chat(const Engine& engine, const boost::json::array& messages, const ChatOptions& options);

}  // namespace quire::engine
