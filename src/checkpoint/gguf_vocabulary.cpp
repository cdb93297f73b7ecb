#include "checkpoint/gguf_vocabulary.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "base/log.h"
#include "checkpoint/text_quote.h"

namespace quire::checkpoint {
namespace {

// Pre-tokenizers whose files mean a beginning-of-sequence token when they do not say.
constexpr auto kPreTokenizersWithBos =
    std::to_array<std::string_view>({"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "tekken"});

Status check_length(std::string_view key, size_t found, size_t num_tokens) {
  if (found == num_tokens) return {};
  return data_loss("metadata \"{}\" has {} entries, expected one for each of the {} tokens", key, found, num_tokens);
}

Status read_tokens(const GgufMetadata& metadata, Vocabulary& vocabulary) {
  constexpr std::string_view kKey = "tokenizer.ggml.tokens";
  QUIRE_ASSIGN_OR_RETURN(const auto tokens, metadata.texts(kKey));
  if (!tokens || tokens->empty()) {
    return data_loss("metadata \"{}\" is {}, expected the tokens of tokenizer model {}", kKey,
                     tokens ? "empty" : "missing", in_quotes(vocabulary.model));
  }
  if (tokens->size() > static_cast<size_t>(std::numeric_limits<TokenId>::max())) {
    return data_loss("metadata \"{}\" has {} entries, more than a token id can name", kKey, tokens->size());
  }
  vocabulary.tokens.assign(tokens->begin(), tokens->end());
  return {};
}

Status read_token_types(const GgufMetadata& metadata, Vocabulary& vocabulary) {
  constexpr std::string_view kKey = "tokenizer.ggml.token_type";
  QUIRE_ASSIGN_OR_RETURN(const auto types, metadata.integers(kKey));
  if (!types) return {};
  QUIRE_RETURN_IF_ERROR(check_length(kKey, types->size(), vocabulary.tokens.size()));
  constexpr auto kMost = static_cast<int64_t>(VocabularyTokenType::kByte);
  vocabulary.token_types.reserve(types->size());
  for (size_t i = 0; i < types->size(); ++i) {
    const int64_t type = (*types)[i];
    if (type < 0 || type > kMost) return data_loss("metadata \"{}\"[{}] is {}, expected 0 to {}", kKey, i, type, kMost);
    vocabulary.token_types.push_back(static_cast<VocabularyTokenType>(type));
  }
  return {};
}

Status read_scores(const GgufMetadata& metadata, Vocabulary& vocabulary) {
  constexpr std::string_view kKey = "tokenizer.ggml.scores";
  QUIRE_ASSIGN_OR_RETURN(auto scores, metadata.floats(kKey));
  if (!scores) return {};
  QUIRE_RETURN_IF_ERROR(check_length(kKey, scores->size(), vocabulary.tokens.size()));
  for (size_t i = 0; i < scores->size(); ++i) {
    if (std::isnan((*scores)[i])) return data_loss("metadata \"{}\"[{}] is not a number", kKey, i);
  }
  vocabulary.scores = std::move(*scores);
  return {};
}

// BERT's files name what stands before and behind a text otherwise; the second word is misspelt in most of them.
Status read_frame_ids(const GgufMetadata& metadata, Vocabulary& vocabulary) {
  if (vocabulary.model != "bert") return {};
  const auto read = [&](std::initializer_list<std::string_view> keys, std::optional<TokenId>& id) -> Status {
    for (const std::string_view key : keys) {
      QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> found, metadata.integer(key));
      if (!found) continue;
      if (*found < 0 || *found >= static_cast<int64_t>(vocabulary.tokens.size())) {
        return data_loss("metadata \"{}\" is {}, but the vocabulary has {} tokens", key, *found,
                         vocabulary.tokens.size());
      }
      id = static_cast<TokenId>(*found);
      return {};
    }
    return {};
  };
  QUIRE_RETURN_IF_ERROR(read({"tokenizer.ggml.cls_token_id"}, vocabulary.bos_id));
  return read({"tokenizer.ggml.seperator_token_id", "tokenizer.ggml.separator_token_id"}, vocabulary.eos_id);
}

Status read_special_ids(const GgufMetadata& metadata, Vocabulary& vocabulary) {
  struct SpecialId {
    std::string_view key;
    std::optional<TokenId> Vocabulary::*member;
  };
  constexpr auto kSpecialIds = std::to_array<SpecialId>({
      {"tokenizer.ggml.bos_token_id", &Vocabulary::bos_id},
      {"tokenizer.ggml.eos_token_id", &Vocabulary::eos_id},
      {"tokenizer.ggml.eot_token_id", &Vocabulary::eot_id},
      {"tokenizer.ggml.unknown_token_id", &Vocabulary::unk_id},
      {"tokenizer.ggml.padding_token_id", &Vocabulary::pad_id},
  });
  for (const SpecialId& special : kSpecialIds) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> id, metadata.integer(special.key));
    if (!id) continue;
    if (*id < 0 || *id >= static_cast<int64_t>(vocabulary.tokens.size())) {
      log_warning("metadata \"{}\" is {}, but the vocabulary has {} tokens: ignored", special.key, *id,
                  vocabulary.tokens.size());
      continue;
    }
    vocabulary.*special.member = static_cast<TokenId>(*id);
  }
  return read_frame_ids(metadata, vocabulary);
}

// SentencePiece's compiled rules: an array of bytes, signed or not.
Status read_charsmap(const GgufMetadata& metadata, Vocabulary& vocabulary) {
  constexpr std::string_view kKey = "tokenizer.ggml.precompiled_charsmap";
  QUIRE_ASSIGN_OR_RETURN(const auto bytes, metadata.integers(kKey));
  if (!bytes) return {};
  vocabulary.precompiled_charsmap.reserve(bytes->size());
  for (size_t i = 0; i < bytes->size(); ++i) {
    const int64_t byte = (*bytes)[i];
    if (byte < -128 || byte > 255) return data_loss("metadata \"{}\"[{}] is {}, expected a byte", kKey, i, byte);
    vocabulary.precompiled_charsmap.push_back(static_cast<char>(byte));
  }
  return {};
}

Status read_flags(const GgufMetadata& metadata, Vocabulary& vocabulary) {
  const bool sentencepiece = vocabulary.model == "llama";
  const bool unigram = vocabulary.model == "t5";
  const bool wordpiece = vocabulary.model == "bert";
  const bool bos_by_default =
      sentencepiece || wordpiece ||
      (vocabulary.model == "gpt2" && std::find(kPreTokenizersWithBos.begin(), kPreTokenizersWithBos.end(),
                                               vocabulary.pre) != kPreTokenizersWithBos.end());
  QUIRE_ASSIGN_OR_RETURN(const std::optional<bool> bos, metadata.boolean("tokenizer.ggml.add_bos_token"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<bool> eos, metadata.boolean("tokenizer.ggml.add_eos_token"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<bool> space, metadata.boolean("tokenizer.ggml.add_space_prefix"));
  vocabulary.add_bos = bos.value_or(bos_by_default && vocabulary.bos_id.has_value());
  vocabulary.add_eos = eos.value_or((unigram || wordpiece) && vocabulary.eos_id.has_value());
  vocabulary.add_space_prefix = space.value_or(sentencepiece || unigram);
  QUIRE_ASSIGN_OR_RETURN(const std::optional<bool> spaces, metadata.boolean("tokenizer.ggml.remove_extra_whitespaces"));
  vocabulary.remove_extra_whitespaces = spaces.value_or(false);
  QUIRE_ASSIGN_OR_RETURN(const std::optional<bool> lowercase, metadata.boolean("tokenizer.ggml.normalizer.lowercase"));
  vocabulary.lowercase = lowercase.value_or(true);
  return {};
}

}  // namespace

Result<std::optional<Vocabulary>> read_gguf_vocabulary(const GgufMetadata& metadata) {
  QUIRE_ASSIGN_OR_RETURN(const auto model, metadata.text("tokenizer.ggml.model"));
  if (!model || *model == "none" || *model == "no_vocab") return std::optional<Vocabulary>();
  Vocabulary vocabulary;
  vocabulary.model = *model;
  QUIRE_ASSIGN_OR_RETURN(const auto pre, metadata.text("tokenizer.ggml.pre"));
  vocabulary.pre = pre.value_or("");
  QUIRE_RETURN_IF_ERROR(read_tokens(metadata, vocabulary));
  QUIRE_RETURN_IF_ERROR(read_token_types(metadata, vocabulary));
  QUIRE_RETURN_IF_ERROR(read_scores(metadata, vocabulary));
  QUIRE_ASSIGN_OR_RETURN(const auto merges, metadata.texts("tokenizer.ggml.merges"));
  if (merges) vocabulary.merges.assign(merges->begin(), merges->end());
  QUIRE_RETURN_IF_ERROR(read_special_ids(metadata, vocabulary));
  QUIRE_RETURN_IF_ERROR(read_flags(metadata, vocabulary));
  QUIRE_RETURN_IF_ERROR(read_charsmap(metadata, vocabulary));
  return std::optional(std::move(vocabulary));
}

}  // namespace quire::checkpoint
