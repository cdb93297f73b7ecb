// Chat templates: our own sandboxed Jinja. A template is data from a stranger: it can compute text and nothing else,
// and only within limits.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"
#include "text/tokenizer.h"

namespace quire::text {

struct TemplateLimits {
  int64_t max_source_bytes = 1 << 20;
  int64_t max_steps = 5'000'000;        // evaluated nodes
  int32_t max_depth = 128;              // nesting of expressions, blocks, macro calls
  int64_t max_output_bytes = 64 << 20;  // rendered text; also bounds all strings alive on the way
  std::chrono::milliseconds max_time{2000};
};

// What strftime_now sees. Called once a render, from the rendering thread.
using TemplateClock = std::function<std::tm()>;

class ChatTemplate {
 public:
  // No clock: the system's, in local time.
  // Errors: invalid_argument with the line of the template, resource_exhausted on a limit.
  static Result<ChatTemplate> parse(std::string_view source, TemplateLimits limits = {}, TemplateClock clock = {});
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Renders as Hugging Face's apply_chat_template does (trim_blocks, lstrip_blocks, loop controls, generation blocks,
  // tojson, strftime_now, raise_exception). `variables` are a user's: messages, tools, documents, keyword arguments; no
  // text that comes out of them is trusted. `trusted` are the operator's: bos_token, eos_token, add_generation_prompt;
  // on the same name they win. Adjacent pieces differ in trust.
  // Errors: invalid_argument with the line (raise_exception: the template's own message), resource_exhausted on a
  // limit.
  // `most_time`: where that is less than the limits' time.
  Result<std::vector<TextPiece>> render(const boost::json::object& variables, const boost::json::object& trusted,
                                        std::chrono::milliseconds most_time = std::chrono::milliseconds::max()) const;

 private:
  struct Program;
  explicit ChatTemplate(std::unique_ptr<Program> program);
  std::unique_ptr<Program> program_;
};

// All pieces as one text.
std::string concatenate(const std::vector<TextPiece>& pieces);

}  // namespace quire::text
