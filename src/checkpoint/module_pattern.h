// Which modules a line of a configuration is about: a name, or a regular expression. Expressions come with the file, so
// that their steps are bounded.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace quire::checkpoint {

class ModulePattern {
 public:
  // `text`: "lm_head", "re:.*mlp\.gate$"; of `expression` all of it is one. Errors: invalid_argument.
  // A name has to begin with an expression (Python's re.match).
  static Result<ModulePattern> parse(std::string_view text, bool expression = false);
  // An expression that a whole name has to match (Python's re.fullmatch). Errors: invalid_argument.
  static Result<ModulePattern> parse_whole(std::string_view expression);

  // An expression that is found somewhere in a name (Python's re.search). Errors: invalid_argument.
  static Result<ModulePattern> parse_anywhere(std::string_view expression);

  // Errors: invalid_argument where the expression takes too many steps.
  Result<bool> matches(std::string_view module) const;
  const std::string& text() const { return text_; }

 private:
  struct Compiled;
  Status compile(std::string_view expression, uint32_t anchors);

  std::string text_;
  std::shared_ptr<const Compiled> compiled_;  // nullptr: a plain name
};

// Whether `name` is "a.b.c" for the key "b.c", "c" or "a.b.c".
bool ends_with_module(std::string_view name, std::string_view key);

}  // namespace quire::checkpoint
