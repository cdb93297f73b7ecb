// Reading values out of a tokenizer.json with errors that name the field.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "base/status.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_added.h"
#include "text/tokenizer_normalizer.h"
#include "text/tokenizer_pipeline.h"
#include "text/tokenizer_vocab.h"

namespace quire::text {

// An object and its path in the file ("pre_tokenizer.pretokenizers[0]").
class JsonNode {
 public:
  JsonNode(const boost::json::value& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  const boost::json::value& value() const { return *value_; }
  std::string path_of(std::string_view key) const {
    return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
  }

  // nullptr: not there, or null.
  const boost::json::value* find(std::string_view key) const;
  // Errors: invalid_argument when missing or of another kind.
  Result<std::string_view> string(std::string_view key) const;
  Result<const boost::json::array*> array(std::string_view key) const;
  Result<const boost::json::object*> object(std::string_view key) const;
  // `absent` when missing or null. Errors: invalid_argument when of another kind.
  Result<bool> boolean(std::string_view key, bool absent) const;
  Result<std::string_view> string_or(std::string_view key, std::string_view absent) const;
  // Errors: invalid_argument unless a non-negative integer.
  Result<int64_t> integer(std::string_view key) const;

 private:
  const boost::json::value* value_;
  std::string path_;
};

std::string_view kind_name(const boost::json::value& value);  // "string", "array", ...

// An added token as tokenizer.json and tokenizer_config.json have it, without its id.
Result<AddedToken> read_added_token(const JsonNode& node);

// The entry "pre_tokenizer". `byte_level` says whether text goes to the model in the alphabet of bytes.
struct PreTokenizerEntry {
  PreTokenizer pre_tokenizer;
  bool byte_level = false;
};
Result<PreTokenizerEntry> read_pre_tokenizer(const JsonNode& root);

// The entry "normalizer".
Status read_normalizer(const JsonNode& root, Normalizer& normalizer);

// The entry "decoder".
Status read_decoder(const JsonNode& root, TokenizerParts& parts);

// The entry "model". `byte_level`: text reaches it in the alphabet of bytes, which it may leave to the model.
enum class ModelKind { kBpe, kUnigram, kWordPiece, kWordLevel };
Result<ModelKind> read_model_kind(const JsonNode& model);
Result<TokenTable> read_vocab(const JsonNode& model, ModelKind kind);
Status read_model(const JsonNode& model, ModelKind kind, bool byte_level, TokenizerParts& parts);

// {"Regex": ...} or {"String": ...} under `key`.
Result<std::unique_ptr<Pattern>> read_pattern(const JsonNode& node, std::string_view key);
// A string of exactly one character.
Result<std::string> read_character(const JsonNode& node, std::string_view key);

// The entry "post_processor": what goes before and after a text.
struct PostProcessorEntry {
  std::vector<TokenId> prefix, suffix;
  std::optional<SpecialFrame> pair;
};
Result<PostProcessorEntry> read_post_processor(const JsonNode& root, const TokenTable& tokens);

}  // namespace quire::text
