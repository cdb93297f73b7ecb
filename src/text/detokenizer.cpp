#include "text/detokenizer.h"

#include <utility>

#include "text/utf8.h"

namespace quire::text {

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
    : tokenizer_(tokenizer),
      skip_special_tokens_(skip_special_tokens),
      stream_(tokenizer.start_decoding(skip_special_tokens)) {}

std::string IncrementalDetokenizer::append(std::span<const TokenId> ids) {
  std::string text;
  if (stream_ != nullptr) {
    for (const TokenId id : ids) stream_->push(id, text);
    return text;
  }
  std::string bytes = std::move(pending_);
  for (const TokenId id : ids) {
    if (skip_special_tokens_ && tokenizer_.is_special(id)) continue;
    bytes.append(tokenizer_.token_bytes(id));
  }
  const size_t waiting = incomplete_utf8_suffix(bytes);
  const std::string_view complete(bytes.data(), bytes.size() - waiting);
  pending_.assign(bytes, complete.size(), waiting);
  append_lossy_utf8(complete, text);
  return text;
}

std::string IncrementalDetokenizer::finish() {
  std::string text;
  if (stream_ != nullptr) {
    stream_->finish(text);
    stream_ = tokenizer_.start_decoding(skip_special_tokens_);
    return text;
  }
  append_lossy_utf8(pending_, text);
  pending_.clear();
  return text;
}

}  // namespace quire::text
