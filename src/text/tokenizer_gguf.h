// The pre-tokenizers that GGUF files name instead of spelling them out.
#pragma once

#include <array>
#include <string_view>

#include "base/status.h"
#include "text/pretokenizer.h"

namespace quire::text {

struct GgufPreTokenizer {
  std::string_view name;  // tokenizer.ggml.pre
  // Applied one after the other, each to the pieces of the one before; empty ones are none.
  const std::array<std::string_view, 6>* regexes = nullptr;
  bool ignore_merges = false;
  bool escapes_spaces = false;  // the vocabulary is in plain UTF-8 with U+2581 for spaces, not in the byte alphabet
};

// Errors: unimplemented for a name that is not known.
Result<GgufPreTokenizer> find_gguf_pre_tokenizer(std::string_view name);
Result<PreTokenizer> make_gguf_pre_tokenizer(const GgufPreTokenizer& entry);

}  // namespace quire::text
