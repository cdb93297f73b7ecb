// The blocks of one sequence, in the order of its tokens: token t lies in block ids()[t /
// block_size] at offset t % block_size.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/block_pool.h"
#include "types/ids.h"

namespace quire::kv {

// Holds one reference to each of its blocks until release(); a table that still holds blocks must
// not be dropped while its pool lives on.
class BlockTable {
 public:
  BlockTable() = default;
  BlockTable(BlockTable&&) noexcept = default;
  BlockTable& operator=(BlockTable&&) noexcept = default;
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  std::span<const BlockId> ids() const { return ids_; }
  int32_t num_blocks() const { return static_cast<int32_t>(ids_.size()); }

  // How many more blocks this table needs to cover `num_tokens` tokens.
  int32_t blocks_missing(int64_t num_tokens, int32_t block_size) const;

  // Takes blocks from the pool until `num_tokens` tokens are covered. All or nothing: false, and no
  // change, when the pool has too few.
  bool grow(BlockPool& pool, int64_t num_tokens);

  // Gives every block back, the last one first: the beginning of a sequence is worth keeping
  // longest.
  void release(BlockPool& pool);

 private:
  std::vector<BlockId> ids_;
};

}  // namespace quire::kv
