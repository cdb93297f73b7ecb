// The physical blocks of the KV cache as ids: which are free, and how many hold each of the others.
// The storage behind an id belongs to runner/; no tensor is ever seen here.
//
// Free blocks wait in the order of their release and the longest free is handed out first (least
// recently used), so that a block whose contents may be wanted again keeps them for as long as
// possible.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "types/ids.h"

namespace quire::kv {

// The number of blocks that `num_tokens` (>= 0) tokens fill, the last one perhaps in part.
constexpr int64_t blocks_for_tokens(int64_t num_tokens, int32_t block_size) {
  return (num_tokens + block_size - 1) / block_size;
}

// Not for several threads at once: the scheduler owns it.
class BlockPool {
 public:
  // REQUIRES: num_blocks >= 1, block_size (tokens a block) >= 1.
  BlockPool(int32_t num_blocks, int32_t block_size);

  int32_t num_blocks() const { return static_cast<int32_t>(reference_counts_.size()); }
  int32_t block_size() const { return block_size_; }
  int32_t num_free() const { return num_free_; }
  int32_t num_used() const { return num_blocks() - num_free_; }
  int32_t reference_count(BlockId block) const;

  // Appends `count` (>= 0) blocks to `out`, each with one holder. All or nothing: false, and no
  // change, when fewer are free.
  bool allocate(int32_t count, std::vector<BlockId>& out);

  // One more holder of each block. REQUIRES: every block has one already.
  void share(std::span<const BlockId> blocks);

  // One holder less of each; a block without a holder becomes free, in the order given.
  // REQUIRES: every block has a holder (a double free is our bug and ends the process).
  void release(std::span<const BlockId> blocks);

  // Checks free + used == total, that the free list holds exactly the blocks without a holder, each
  // once, and ends the process if not. O(num_blocks): for tests and debug builds.
  void check_invariants() const;

 private:
  void check_block(BlockId block) const;
  void push_free(BlockId block);

  int32_t block_size_;
  std::vector<int32_t> reference_counts_;  // [num_blocks]; 0: free
  // The free list, linked through the blocks themselves: free_next_[free_head_] is the second
  // longest free.
  std::vector<BlockId> free_next_;  // [num_blocks]
  BlockId free_head_ = -1;
  BlockId free_tail_ = -1;
  int32_t num_free_ = 0;
};

}  // namespace quire::kv
