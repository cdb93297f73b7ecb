// "ORG/NAME" and "ORG/NAME:TYPE": a model on the Hub, and which of its GGUF files.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace quire::hub {

struct ModelName {
  std::string repository;  // "ORG/NAME"
  std::string gguf;        // "Q4_K_M", or a file's path in the repository ("q4/model.gguf"); empty: not said

  std::string text() const { return gguf.empty() ? repository : repository + ":" + gguf; }
  std::string folder() const;  // "models--ORG--NAME"
};

// Whether a text could be one: not a path ("./a", "/a/b", "a/b/c", "a/b.gguf"), and of the characters that the Hub has.
bool looks_like_model_name(std::string_view text);

// Errors: invalid_argument, saying how a name looks.
Result<ModelName> parse_model_name(std::string_view text);

// A path within a repository or the name of a revision, both of which come from outside and become paths here: no
// folder above, nothing absolute, no backslash, no control character, bounded.
bool is_safe_path(std::string_view path);

// Forty hexadecimal digits.
bool is_commit(std::string_view text);

}  // namespace quire::hub
