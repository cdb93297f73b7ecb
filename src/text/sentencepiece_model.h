// SentencePiece's model file: a protocol buffer, read field by field without a library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire::text {

// The numbers are the file's.
enum class SentencePieceType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
enum class SentencePieceModelType { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };

struct SentencePiece {
  std::string text;  // valid UTF-8
  float score = 0;
  SentencePieceType type = SentencePieceType::kNormal;
};

struct SentencePieceModel {
  std::vector<SentencePiece> pieces;  // index = id
  SentencePieceModelType type = SentencePieceModelType::kUnigram;
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  std::string unknown_surface = " \xE2\x81\x87 ";  // what the unknown piece decodes to
  int32_t bos_id = 1, eos_id = 2, pad_id = -1;     // below 0: none
  std::string precompiled_charsmap;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool has_denormalizer = false;
};

// Errors: invalid_argument naming the field for a length past the end, a field of another kind than it has, a piece
// that is not valid UTF-8 or of no type, no pieces, too many of them; fields that are not known are passed over.
Result<SentencePieceModel> parse_sentencepiece_model(std::string_view bytes);

}  // namespace quire::text
