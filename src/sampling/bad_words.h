// Token sequences that must not come up: the last token of each is banned where the text ends in the
// ones before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "types/ids.h"

namespace quire::sampling {

class BadWords {
 public:
  // Keeps a pointer to `sequences`, which must outlive it. Sequences whose last token is outside
  // [0, vocab_size), and empty ones, have no effect.
  BadWords(const std::vector<std::vector<TokenId>>& sequences, int64_t vocab_size);

  bool empty() const { return words_.empty(); }
  // How many tokens of history decide.
  size_t reach() const { return reach_; }
  // The tokens that would complete a word, maybe some of them twice. history: prompt and answer, oldest first, at least
  // the last reach() of them.
  void add_banned(std::span<const TokenId> history, std::vector<TokenId>& banned) const;

  int64_t heap_bytes() const { return static_cast<int64_t>(words_.capacity() * sizeof(words_.front())); }

 private:
  std::vector<std::span<const TokenId>> words_;
  size_t reach_ = 0;
};

}  // namespace quire::sampling
