#include "text/sentencepiece_model.h"

#include <bit>
#include <cmath>
#include <optional>

#include "text/tokenizer_vocab.h"
#include "text/utf8.h"

namespace quire::text {
namespace {

// One field of a message in the wire format of protocol buffers.
struct Field {
  uint32_t number = 0;
  uint32_t kind = 0;       // 0: varint, 1: 64 bits, 2: bytes, 5: 32 bits
  uint64_t value = 0;      // of kinds 0, 1 and 5
  std::string_view bytes;  // of kind 2
};

class FieldReader {
 public:
  // `where` is what errors call the message.
  FieldReader(std::string_view bytes, std::string_view where) : bytes_(bytes), where_(where) {}

  // nullopt: the message ends here.
  Result<std::optional<Field>> next() {
    if (position_ == bytes_.size()) return std::optional<Field>();
    Field field;
    QUIRE_ASSIGN_OR_RETURN(const uint64_t tag, varint());
    field.number = static_cast<uint32_t>(tag >> 3);
    field.kind = static_cast<uint32_t>(tag & 7);
    switch (field.kind) {
      case 0: {
        QUIRE_ASSIGN_OR_RETURN(field.value, varint());
        break;
      }
      case 1: {
        QUIRE_ASSIGN_OR_RETURN(field.value, fixed(8));
        break;
      }
      case 2: {
        QUIRE_ASSIGN_OR_RETURN(const uint64_t length, varint());
        if (length > bytes_.size() - position_) return ends_early(length);
        field.bytes = bytes_.substr(position_, static_cast<size_t>(length));
        position_ += static_cast<size_t>(length);
        break;
      }
      case 5: {
        QUIRE_ASSIGN_OR_RETURN(field.value, fixed(4));
        break;
      }
      default:
        return invalid_argument("{}: field {} at byte {} has the wire type {}; this is no SentencePiece model", where_,
                                field.number, position_, field.kind);
    }
    return std::optional(field);
  }

 private:
  Status ends_early(uint64_t length) const {
    return invalid_argument("{}: {} bytes are announced at byte {}, but {} follow", where_, length, position_,
                            bytes_.size() - position_);
  }
  Result<uint64_t> varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (position_ == bytes_.size()) return ends_early(1);
      const auto byte = static_cast<unsigned char>(bytes_[position_++]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    return invalid_argument("{}: a number at byte {} is longer than 64 bits", where_, position_);
  }
  Result<uint64_t> fixed(size_t length) {
    if (bytes_.size() - position_ < length) return ends_early(length);
    uint64_t value = 0;
    for (size_t i = length; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes_[position_ + i]);
    position_ += length;
    return value;
  }

  std::string_view bytes_;
  std::string_view where_;
  size_t position_ = 0;
};

Status expect_kind(const Field& field, uint32_t kind, std::string_view name) {
  if (field.kind == kind) return {};
  return invalid_argument("{}: wire type {}; expected {}", name, field.kind, kind);
}

Status read_flag(const Field& field, std::string_view name, bool& flag) {
  QUIRE_RETURN_IF_ERROR(expect_kind(field, 0, name));
  flag = field.value != 0;
  return {};
}

Status read_id(const Field& field, std::string_view name, int32_t& id) {
  QUIRE_RETURN_IF_ERROR(expect_kind(field, 0, name));
  id = static_cast<int32_t>(field.value);  // negative ones are written as 64 bits in two's complement
  return {};
}

Status read_text(const Field& field, std::string_view name, std::string& text) {
  QUIRE_RETURN_IF_ERROR(expect_kind(field, 2, name));
  text = field.bytes;
  return {};
}

Result<SentencePiece> read_piece(std::string_view bytes, size_t index) {
  const std::string where = fmt::format("pieces[{}]", index);
  SentencePiece piece;
  FieldReader reader(bytes, where);
  while (true) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<Field> field, reader.next());
    if (!field) break;
    if (field->number == 1) {
      QUIRE_RETURN_IF_ERROR(read_text(*field, where + ".piece", piece.text));
    } else if (field->number == 2) {
      QUIRE_RETURN_IF_ERROR(expect_kind(*field, 5, where + ".score"));
      piece.score = std::bit_cast<float>(static_cast<uint32_t>(field->value));
    } else if (field->number == 3) {
      QUIRE_RETURN_IF_ERROR(expect_kind(*field, 0, where + ".type"));
      if (field->value < 1 || field->value > 6)
        return invalid_argument("{}.type: {}; expected 1 to 6", where, field->value);
      piece.type = static_cast<SentencePieceType>(field->value);
    }
  }
  if (!is_valid_utf8(piece.text)) return invalid_argument("{}.piece: not valid UTF-8", where);
  if (!std::isfinite(piece.score)) return invalid_argument("{}.score: {} is not finite", where, piece.score);
  return piece;
}

Status read_trainer_spec(std::string_view bytes, SentencePieceModel& model) {
  FieldReader reader(bytes, "trainer_spec");
  while (true) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<Field> field, reader.next());
    if (!field) return {};
    switch (field->number) {
      case 3:
        QUIRE_RETURN_IF_ERROR(expect_kind(*field, 0, "trainer_spec.model_type"));
        if (field->value < 1 || field->value > 4) {
          return invalid_argument("trainer_spec.model_type: {}; expected 1 to 4", field->value);
        }
        model.type = static_cast<SentencePieceModelType>(field->value);
        break;
      case 24:
        QUIRE_RETURN_IF_ERROR(read_flag(*field, "trainer_spec.treat_whitespace_as_suffix", model.whitespace_as_suffix));
        break;
      case 35:
        QUIRE_RETURN_IF_ERROR(read_flag(*field, "trainer_spec.byte_fallback", model.byte_fallback));
        break;
      case 41:
        QUIRE_RETURN_IF_ERROR(read_id(*field, "trainer_spec.bos_id", model.bos_id));
        break;
      case 42:
        QUIRE_RETURN_IF_ERROR(read_id(*field, "trainer_spec.eos_id", model.eos_id));
        break;
      case 43:
        QUIRE_RETURN_IF_ERROR(read_id(*field, "trainer_spec.pad_id", model.pad_id));
        break;
      case 44:
        QUIRE_RETURN_IF_ERROR(read_text(*field, "trainer_spec.unk_surface", model.unknown_surface));
        break;
      default:
        break;
    }
  }
}

Status read_normalizer_spec(std::string_view bytes, SentencePieceModel& model) {
  FieldReader reader(bytes, "normalizer_spec");
  while (true) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<Field> field, reader.next());
    if (!field) return {};
    switch (field->number) {
      case 2:
        QUIRE_RETURN_IF_ERROR(read_text(*field, "normalizer_spec.precompiled_charsmap", model.precompiled_charsmap));
        break;
      case 3:
        QUIRE_RETURN_IF_ERROR(read_flag(*field, "normalizer_spec.add_dummy_prefix", model.add_dummy_prefix));
        break;
      case 4:
        QUIRE_RETURN_IF_ERROR(
            read_flag(*field, "normalizer_spec.remove_extra_whitespaces", model.remove_extra_whitespaces));
        break;
      case 5:
        QUIRE_RETURN_IF_ERROR(read_flag(*field, "normalizer_spec.escape_whitespaces", model.escape_whitespaces));
        break;
      default:
        break;
    }
  }
}

Status read_denormalizer_spec(std::string_view bytes, SentencePieceModel& model) {
  FieldReader reader(bytes, "denormalizer_spec");
  while (true) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<Field> field, reader.next());
    if (!field) return {};
    if (field->number == 2 && !field->bytes.empty()) model.has_denormalizer = true;
  }
}

}  // namespace

Result<SentencePieceModel> parse_sentencepiece_model(std::string_view bytes) {
  SentencePieceModel model;
  FieldReader reader(bytes, "the model");
  while (true) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<Field> field, reader.next());
    if (!field) break;
    if (field->number < 1 || (field->number > 3 && field->number != 5)) continue;
    QUIRE_RETURN_IF_ERROR(expect_kind(*field, 2, fmt::format("field {} of the model", field->number)));
    if (field->number == 1) {
      if (model.pieces.size() > static_cast<size_t>(kMaxTokenId)) {
        return invalid_argument("pieces: more than {}", kMaxTokenId);
      }
      QUIRE_ASSIGN_OR_RETURN(SentencePiece piece, read_piece(field->bytes, model.pieces.size()));
      model.pieces.push_back(std::move(piece));
    } else if (field->number == 2) {
      QUIRE_RETURN_IF_ERROR(read_trainer_spec(field->bytes, model));
    } else if (field->number == 3) {
      QUIRE_RETURN_IF_ERROR(read_normalizer_spec(field->bytes, model));
    } else {
      QUIRE_RETURN_IF_ERROR(read_denormalizer_spec(field->bytes, model));
    }
  }
  if (model.pieces.empty()) return invalid_argument("pieces: none");
  if (!is_valid_utf8(model.unknown_surface)) return invalid_argument("trainer_spec.unk_surface: not valid UTF-8");
  return model;
}

}  // namespace quire::text
