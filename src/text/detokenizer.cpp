#include "text/detokenizer.h"

#include <utility>

#include "text/utf8.h"

namespace quire::text {

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
                                               bool spaces_between_special_tokens)
    : tokenizer_(tokenizer),
      skip_special_tokens_(skip_special_tokens),
      spaces_between_special_tokens_(skip_special_tokens || spaces_between_special_tokens),
      stream_(tokenizer.start_decoding(skip_special_tokens)) {}

std::string IncrementalDetokenizer::append(std::span<const TokenId> ids) {
  std::string text;
  if (stream_ != nullptr) {
    for (const TokenId id : ids) {
      if (spaces_between_special_tokens_) {
        stream_->push(id, text);
      } else {
        push_without_space(id, text);
      }
    }
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

void IncrementalDetokenizer::push_without_space(TokenId id, std::string& text) {
  std::string piece;
  stream_->push(id, piece);
  const bool is_special = tokenizer_.is_special(id);
  if (is_special && last_was_special_ && piece.starts_with(' ')) {
    // A special token may begin with a space of its own.
    const std::optional<std::string> spelling = tokenizer_.id_to_token(id);
    if (spelling && piece.compare(1, std::string::npos, *spelling) == 0) piece.erase(0, 1);
  }
  last_was_special_ = is_special;
  text += piece;
}

std::string IncrementalDetokenizer::finish() {
  std::string text;
  if (stream_ != nullptr) {
    stream_->finish(text);
    stream_ = tokenizer_.start_decoding(skip_special_tokens_);
    last_was_special_ = false;
    return text;
  }
  append_lossy_utf8(pending_, text);
  pending_.clear();
  return text;
}

}  // namespace quire::text
