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
  // The tokenizer must outlive it.
  IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens);

  // The text that `ids`, after everything given before, complete. Concatenating what append() and finish() returned
  // equals tokenizer.decode() of all ids.
  std::string append(std::span<const TokenId> ids);
  // What is still held back, ill-formed bytes as U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  std::unique_ptr<DecodeStream> stream_;  // null: the text is the tokens' bytes
  std::string pending_;                   // bytes of an unfinished UTF-8 sequence
};

}  // namespace quire::text
