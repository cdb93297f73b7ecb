// The physical blocks of the KV cache as ids: which are free, which of those keep contents worth finding again, and how
// many hold each of the others. The storage behind an id belongs to runner/; no tensor is ever seen here.
//
// The free list is the evictor. Free blocks without contents are handed out first, the last released before the
// others, so that a pool that is never full touches little memory. When there are none left, the cached ones follow in
// the order of their release (least recently used first).
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
  // REQUIRES: num_blocks >= 1.
  explicit BlockPool(int32_t num_blocks);

  int32_t num_blocks() const { return static_cast<int32_t>(reference_counts_.size()); }
  int32_t num_free() const { return num_free_; }      // without a holder, cached ones included
  int32_t num_cached() const { return num_cached_; }  // of the free: those that keep contents
  int32_t num_used() const { return num_blocks() - num_free_; }
  int32_t reference_count(BlockId block) const;
  bool cached(BlockId block) const;

  // Appends `count` (>= 0) blocks to `out`, each with one holder and no longer cached. All or nothing: false, and no
  // change, when fewer are free.
  bool allocate(int32_t count, std::vector<BlockId>& out);

  // One more holder of a block that has one already or is cached.
  void hold(BlockId block);

  // One holder less; a block without a holder becomes free. REQUIRES: the block has a holder (a double free is our bug
  // and ends the process).
  void release(BlockId block);

  // Whether the block's contents can be found again (by the prefix cache), held or not.
  void set_cached(BlockId block, bool cached);

  // Checks free + used == total, that each list holds exactly its blocks, each once, and ends the process if not.
  // O(num_blocks): for tests and debug builds.
  void check_invariants() const;

 private:
  void check_block(BlockId block) const;
  void push_free(BlockId block);
  void unlink(BlockId block);
  void link_after(BlockId place, BlockId block);
  BlockId blank_head() const { return num_blocks(); }  // list heads are two entries behind the blocks
  BlockId cached_head() const { return num_blocks() + 1; }

  std::vector<int32_t> reference_counts_;  // [num_blocks]; 0: free
  std::vector<uint8_t> cached_;            // [num_blocks]
  // Two rings through the free blocks, each closed over its head.
  std::vector<BlockId> next_;      // [num_blocks + 2]
  std::vector<BlockId> previous_;  // [num_blocks + 2]
  int32_t num_free_ = 0;
  int32_t num_cached_ = 0;
};

}  // namespace quire::kv
