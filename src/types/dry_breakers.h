// The sequence breakers of DRY (sampling/dry.h) as tokens. Immutable: every answer, prompt and request with the same
// list of texts shares one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "types/ids.h"

namespace quire {

class DryBreakers {
 public:
  // Of a breaker so many tokens count, as in llama.cpp: a text that nearly matches long ones everywhere costs no more.
  static constexpr size_t kMostTokens = 20;

  DryBreakers() = default;
  // sequences: tokens that break a run when they come one after the other. Empty ones and negative ids have no effect.
  explicit DryBreakers(const std::vector<std::vector<TokenId>>& sequences);
  // tokens: [words], bit t % 64 of word t / 64 says whether token t is a breaker by itself; those of `sequences` are
  // too.
  DryBreakers(std::vector<uint64_t> tokens, const std::vector<std::vector<TokenId>>& sequences);

  bool empty() const { return tokens_.empty() && longer_.empty(); }
  // Is this token a breaker by itself? O(1).
  bool is_breaker(TokenId token) const {
    const auto word = static_cast<size_t>(token) / 64;
    return token >= 0 && word < tokens_.size() && (tokens_[word] >> (static_cast<size_t>(token) % 64) & 1) != 0;
  }
  // How many tokens at the beginning of `text` the longest breaker takes that stands there; 0: none does.
  size_t length_at(std::span<const TokenId> text) const;

  // What it is made of, and could be made of again: the words of bits, and breakers of several tokens, rising.
  const std::vector<uint64_t>& words() const { return tokens_; }
  const std::vector<std::vector<TokenId>>& longer() const { return longer_; }

  // What it holds: a bit for each token, and the tokens of longer breakers.
  int64_t heap_bytes() const;

 private:
  void add(const std::vector<std::vector<TokenId>>& sequences);

  std::vector<uint64_t> tokens_;
  std::vector<std::vector<TokenId>> longer_;  // of 2 to kMostTokens tokens, rising
};

}  // namespace quire
