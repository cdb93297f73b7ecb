#include "text/tokenizer.h"

namespace quire::text {

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_source(const TextSource& source) {
  if (source.vocabulary) return from_vocabulary(*source.vocabulary);
  if (!source.tokenizer_json.empty()) return from_json(source.tokenizer_json);
  return not_found(
      "the model has no tokenizer: neither a tokenizer.json nor a vocabulary in its file. Name one with --tokenizer, "
      "or serve token ids with --skip-tokenizer-init.");
}

}  // namespace quire::text
