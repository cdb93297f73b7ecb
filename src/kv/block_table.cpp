#include "kv/block_table.h"

#include <algorithm>

namespace quire::kv {

int32_t BlockTable::blocks_missing(int64_t num_tokens, int32_t block_size) const {
  const int64_t needed = blocks_for_tokens(num_tokens, block_size);
  return static_cast<int32_t>(std::max<int64_t>(needed - num_blocks(), 0));
}

bool BlockTable::grow(BlockPool& pool, int64_t num_tokens) {
  return pool.allocate(blocks_missing(num_tokens, pool.block_size()), ids_);
}

void BlockTable::release(BlockPool& pool) {
  std::reverse(ids_.begin(), ids_.end());
  pool.release(ids_);
  ids_.clear();
}

}  // namespace quire::kv
