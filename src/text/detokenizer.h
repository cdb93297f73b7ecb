// Text of one growing answer: give it ids as they come, take text that is final. Never gives out part of a UTF-8
// sequence: bytes that may still become a character wait for the next id.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "text/tokenizer.h"

namespace quire::text {

class IncrementalDetokenizer {
 public:
  // spaces_between_special_tokens: of special tokens that follow each other, the space that decoders of words
  // (WordPiece's, or none at all) put between any two tokens; false: none. Decoders of bytes and SentencePiece's put
  // none there in any case. As in vLLM it says nothing where special tokens are skipped. The tokenizer must outlive it.
  IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
                         bool spaces_between_special_tokens = true);

  // The text that `ids`, after everything given before, complete. Concatenating what append() and finish() returned
  // equals tokenizer.decode() of all ids, but for spaces between special tokens that were not wanted.
  std::string append(std::span<const TokenId> ids);
  // What is still held back, ill-formed bytes as U+FFFD.
  std::string finish();

 private:
  void push_without_space(TokenId id, std::string& text);

  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  bool spaces_between_special_tokens_;
  bool last_was_special_ = false;
  std::unique_ptr<DecodeStream> stream_;  // null: the text is the tokens' bytes
  std::string pending_;                   // bytes of an unfinished UTF-8 sequence
};

}  // namespace quire::text
