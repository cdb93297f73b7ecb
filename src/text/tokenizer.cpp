#include "text/tokenizer.h"

namespace quire::text {

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_source(const TextSource& source) {
  if (source.vocabulary) return from_vocabulary(*source.vocabulary);
  if (!source.tokenizer_json.empty()) return from_json(source.tokenizer_json, source.tokenizer_config);
  if (!source.sentencepiece_model.empty()) {
    return from_sentencepiece(source.sentencepiece_model, source.tokenizer_config);
  }
  return not_found(
      "the model has no tokenizer: neither a tokenizer.json, nor a tokenizer.model, nor a vocabulary in its file. Name "
      "one with --tokenizer, or serve token ids with --skip-tokenizer-init.");
}

Result<std::vector<TokenId>> Tokenizer::encode_within(std::span<const TextPiece> pieces, bool add_special_tokens,
                                                      const EncodeLimits&) const {
  return encode(pieces, add_special_tokens);
}

}  // namespace quire::text
