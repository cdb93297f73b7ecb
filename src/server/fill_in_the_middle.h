// Prompts of models that were trained to fill a gap: the text before it and the text behind it, between special tokens
// that say which is which.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/openai_schema.h"
#include "text/tokenizer.h"
#include "types/ids.h"

namespace quire::server {

// The prompt for what is between `prefix` and `suffix`, in the spelling that the vocabulary has: Qwen's and CodeGemma's
// <|fim_prefix|>, StarCoder's and Granite's <fim_prefix>, CodeLlama's <PRE>, DeepSeek's <｜fim▁begin｜>.
// `limits`: of each of the two texts. Errors: invalid_argument with param() "suffix" where it has none of them;
// deadline_exceeded as encode_within().
Result<std::vector<TokenId>> fill_in_the_middle(const text::Tokenizer& tokenizer, const Prompt& prefix,
                                                std::string_view suffix, bool add_special_tokens,
                                                const text::EncodeLimits& limits);

}  // namespace quire::server
