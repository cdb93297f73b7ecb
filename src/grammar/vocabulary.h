// A model's tokens as grammars see them: what text each stands for, and which end an answer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "text/tokenizer.h"
#include "types/ids.h"

namespace quire::grammar {

// Immutable; sorted for the masks once, when it is made (about 1 us a token).
class GrammarVocabulary {
 public:
  // vocab_size: the width of the model's logits; ids beyond the tokenizer's never may be said. end_ids: those that end
  // an answer by themselves; a grammar allows them where it is complete. Special tokens are no text; with
  // special_tokens those that are marks of some format (is_mark) stand for their spelling.
  GrammarVocabulary(const text::Tokenizer& tokenizer, int64_t vocab_size, std::vector<TokenId> end_ids,
                    bool special_tokens);
  ~GrammarVocabulary();
  GrammarVocabulary(const GrammarVocabulary&) = delete;
  GrammarVocabulary& operator=(const GrammarVocabulary&) = delete;

  int64_t vocab_size() const;
  const std::vector<TokenId>& end_ids() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::grammar
