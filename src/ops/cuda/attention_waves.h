// How contexts are spread over a card's processors: whole, a block each, or cut into splits that are folded afterwards.
#pragma once

#include <algorithm>
#include <cstdint>

namespace quire::ops::cuda {

// Blocks that keep the memory busy: two for each of an H100's processors.
inline constexpr int64_t kBlocksAtOnce = 264;

// Sequences that are decoded.
struct DecodedContexts {
  int64_t num_sequences = 0;
  int64_t blocks_each = 1;  // of a sequence that is not cut
  int64_t longest = 0;      // positions that a sequence sees
  int64_t total = 0;        // of all sequences
};

// Whether splits of so many positions take less time, in positions that one block walks. Whole contexts take as many
// rounds as their blocks need, of contexts of the mean, and at least as long as the longest. Splits are spread evenly,
// read and written again as parts, which is a twentieth of what heads of 128 read, and are folded by a launch of its
// own, in whose few microseconds a block walks some 128 positions.
inline bool cuts_contexts(const DecodedContexts& contexts, int64_t split) {
  if (contexts.num_sequences == 0 || contexts.longest <= split) return false;
  const int64_t rounds = (contexts.num_sequences * contexts.blocks_each + kBlocksAtOnce - 1) / kBlocksAtOnce;
  const int64_t whole = std::max(contexts.longest, rounds * (contexts.total / contexts.num_sequences));
  const int64_t spread = contexts.total * contexts.blocks_each / kBlocksAtOnce;
  constexpr int64_t kFolding = 128;
  return std::max(split, spread + spread / 20) + kFolding < whole;
}

// Of contexts that are cut: how many splits a block walks one after the other. A block's beginning, some microseconds
// in which it finds its rows and waits for its first codes, is spared by every split after the first; but there are to
// be three times as many blocks as keep the memory busy, so that the last ones are short.
inline int64_t splits_of_block(const DecodedContexts& contexts, int64_t split) {
  return std::max<int64_t>(1, contexts.total * contexts.blocks_each / (split * 3 * kBlocksAtOnce));
}

}  // namespace quire::ops::cuda
