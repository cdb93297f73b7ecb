// What a model's files say about text, as plain data: runner/ reads it out of the checkpoint
// for the engine, which makes a tokenizer and a chat template of it.
#pragma once

#include <optional>
#include <string>

#include "types/vocabulary.h"

namespace quire {

struct TextSource {
  std::optional<Vocabulary> vocabulary;  // GGUF
  std::string tokenizer_json;            // Hugging Face; empty when there is none
  std::string sentencepiece_model;       // bytes of a tokenizer.model (SentencePiece); empty when there is none
  std::string tokenizer_config;          // tokenizer_config.json beside it, as text; may be empty
  std::string chat_template;             // Jinja source; empty when there is none
  std::string bos_token, eos_token;      // spelling, for templates; may be empty
  std::string generation_config;         // generation_config.json, as text; empty when there is none
};

}  // namespace quire
