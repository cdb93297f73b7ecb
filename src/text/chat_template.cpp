#include "text/chat_template.h"

#include <algorithm>
#include <ctime>

#include "text/jinja_interpreter.h"
#include "text/jinja_lexer.h"
#include "text/jinja_parser.h"

namespace quire::text {

struct ChatTemplate::Program {
  TemplateLimits limits;
  TemplateClock clock;
  jinja::Syntax syntax;
};

namespace {

std::tm local_time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

}  // namespace

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, TemplateLimits limits, TemplateClock clock) {
  if (static_cast<int64_t>(source.size()) > limits.max_source_bytes) {
    return resource_exhausted("chat template: {} bytes of source, at most {} are read", source.size(),
                              limits.max_source_bytes);
  }
  QUIRE_ASSIGN_OR_RETURN(jinja::Syntax syntax, jinja::parse(jinja::normalize_source(source), limits.max_depth));
  auto program = std::make_unique<Program>();
  program->limits = limits;
  program->clock = clock ? std::move(clock) : local_time_now;
  program->syntax = std::move(syntax);
  return ChatTemplate(std::move(program));
}

ChatTemplate::ChatTemplate(std::unique_ptr<Program> program) : program_(std::move(program)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<std::vector<TextPiece>> ChatTemplate::render(const boost::json::object& variables,
                                                    const boost::json::object& trusted,
                                                    std::chrono::milliseconds most_time) const {
  TemplateLimits limits = program_->limits;
  limits.max_time = std::min(limits.max_time, most_time);
  return jinja::Interpreter(program_->syntax, limits, variables, trusted, program_->clock()).render();
}

std::string concatenate(const std::vector<TextPiece>& pieces) {
  std::string text;
  for (const TextPiece& piece : pieces) text += piece.text;
  return text;
}

}  // namespace quire::text
