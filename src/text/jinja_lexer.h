// The source of a template as tokens, with whitespace control already applied (trim_blocks, lstrip_blocks, the signs -
// and + in tags, no trailing newline).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire::text::jinja {

enum class TokenKind : uint8_t {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,  // with its quotes and escapes
  kInteger,
  kReal,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int32_t line = 1;
  std::string_view text;  // into the normalised source
};

// "\r\n" and "\r" become "\n"; one newline at the end is dropped; ill-formed UTF-8 becomes U+FFFD.
std::string normalize_source(std::string_view source);

// `source` is a normalised one and must outlive the tokens. The last token is kEnd.
// Errors: invalid_argument with the line.
Result<std::vector<Token>> tokenize(std::string_view source);

// The value of a kString token's text.
Result<std::string> decode_string_literal(std::string_view literal, int line);

}  // namespace quire::text::jinja
