// What a model's files say about text, as plain data: runner/ reads it out of the checkpoint,
// engine/ makes a tokenizer and a chat template of it.
#pragma once

#include <optional>
#include <string>

#include "types/vocabulary.h"

namespace quire {

struct TextSource {
  std::optional<Vocabulary> vocabulary;  // GGUF
  std::string tokenizer_json;            // Hugging Face; empty when there is none
  std::string chat_template;             // Jinja source; empty when there is none
  std::string bos_token, eos_token;      // spelling, for templates; may be empty
};

}  // namespace quire
