// The text that a model is calibrated with, or measured by, as windows of tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace quire::quantize {

// The file's text as ids, without special tokens around it. Errors: not_found; invalid_argument for a file without
// text.
Result<std::vector<TokenId>> read_ids(const std::string& path, const text::Tokenizer& tokenizer);

// What a text of this model begins with.
std::vector<TokenId> first_ids(const text::Tokenizer& tokenizer);

}  // namespace quire::quantize
