// What a model's files say about text, as plain data: runner/ reads it out of the checkpoint
// for the engine, which makes a tokenizer and a chat template of it.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "types/vocabulary.h"

namespace quire {

struct TextSource {
  std::optional<Vocabulary> vocabulary;  // GGUF
  std::string tokenizer_json;            // Hugging Face; empty when there is none
  std::string sentencepiece_model;       // bytes of a tokenizer.model (SentencePiece); empty when there is none
  std::string tokenizer_config;          // tokenizer_config.json beside it, as text; may be empty
  std::string chat_template;             // Jinja source; empty when there is none
  std::string bos_token, eos_token;      // spelling, for templates; may be empty
  // What sentence-transformers puts before a text, by name ("query"), and the name of what is put there unasked; may be
  // empty.
  std::vector<std::pair<std::string, std::string>> prompts;
  std::string default_prompt;
  bool truncates_left = false;    // texts that are cut to a length lose their beginning (tokenizer_config.json)
  std::string generation_config;  // generation_config.json, as text; empty when there is none
};

}  // namespace quire
