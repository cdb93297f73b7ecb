// Tokens to tree: the grammar of Jinja 3.1 with the statements that chat templates have (no include, import, extends).
#pragma once

#include <string_view>

#include "base/status.h"
#include "text/jinja_ast.h"

namespace quire::text::jinja {

// `source` is normalised (jinja_lexer.h). `max_depth` bounds how deep expressions and blocks nest, and so the stack
// that parsing and rendering take. Errors: invalid_argument, resource_exhausted for a limit; both with the line.
Result<Syntax> parse(std::string_view source, int max_depth);

}  // namespace quire::text::jinja
