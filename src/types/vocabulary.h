// What a checkpoint file says about its tokenizer, as plain data: checkpoint/ reads it out of GGUF
// metadata, text/ makes a tokenizer of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "types/ids.h"

namespace quire {

// llama.cpp's token types, as written in tokenizer.ggml.token_type.
enum class VocabularyTokenType : int32_t {
  kUndefined = 0,
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct Vocabulary {
  std::string model;                // tokenizer.ggml.model: "gpt2", "llama", "t5", ...
  std::string pre;                  // tokenizer.ggml.pre: "smollm", "llama-bpe", "qwen2", ...; may be empty
  std::vector<std::string> tokens;  // index = id; text as stored (byte-level alphabet for gpt2)
  std::vector<VocabularyTokenType> token_types;  // empty or tokens.size()
  std::vector<float> scores;                     // empty or tokens.size()
  std::vector<std::string> merges;               // "left right", by rank
  std::optional<TokenId> bos_id, eos_id, eot_id, unk_id, pad_id;
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = false;
  bool remove_extra_whitespaces = false;
  bool lowercase = true;             // "bert": text is put into lower case, and loses its accents
  std::string precompiled_charsmap;  // SentencePiece's compiled normalisation rules; may be empty
};

}  // namespace quire
