// The last tokens of a text, or of many, with an index by their short runs: where did what a text ends with stand
// before, and what followed? Bounded memory, constant time a token; a look-up walks at most so many places.
//
// The index is that of LZ77 compressors (a table of the last place of each run of `key_length` tokens by its hash, and
// from each place a link to the one before), not a suffix tree: it forgets the oldest by overwriting it, and takes 12
// bytes a token beside the token itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "types/ids.h"

namespace quire::runner {

class TokenWindow {
 public:
  static constexpr TokenId kGap = -1;  // between texts: nothing matches across it

  struct Place {
    uint32_t next = 0;   // of the token that followed
    int32_t length = 0;  // how many tokens before it are those that were looked for
  };

  // key_length: the shortest run that is found, 1 to 8. capacity: tokens that are kept; 0: all.
  explicit TokenWindow(int32_t key_length, size_t capacity = 0);

  void append(TokenId token);
  void append(std::span<const TokenId> tokens);

  // Tokens are counted from 0 on, those that are forgotten too.
  uint32_t end() const { return end_; }
  uint32_t begin() const { return capacity_ > 0 && end_ > capacity_ ? end_ - static_cast<uint32_t>(capacity_) : 0; }
  TokenId operator[](uint32_t place) const { return tokens_[slot(place)]; }

  // Places where at least key_length, at most `most_length` of the last tokens of `text` stand, with a token behind
  // them; the latest first, at most `most_places` of them, out of so many looked at. Appends to `places`.
  void find(std::span<const TokenId> text, int32_t most_length, size_t most_places, std::vector<Place>& places) const;

  size_t heap_bytes() const;

 private:
  static constexpr uint32_t kNowhere = UINT32_MAX;

  size_t slot(uint32_t place) const { return capacity_ > 0 ? place % capacity_ : place; }
  size_t head_of(std::span<const TokenId> key) const;
  void link(uint32_t next);
  void make_heads(size_t count);

  const size_t key_length_;
  const size_t capacity_;
  uint32_t end_ = 0;
  uint32_t since_gap_ = 0;         // tokens
  std::vector<TokenId> tokens_;    // by slot
  std::vector<uint32_t> earlier_;  // by slot of a token: the place before it with the same hash of what stands before
  std::vector<uint32_t> heads_;    // by hash of key_length tokens: the last place behind them
};

}  // namespace quire::runner
