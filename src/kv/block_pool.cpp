#include "kv/block_pool.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::kv {
namespace {
constexpr BlockId kNone = -1;
}

BlockPool::BlockPool(int32_t num_blocks, int32_t block_size) : block_size_(block_size) {
  QUIRE_CHECK(num_blocks >= 1);
  QUIRE_CHECK(block_size >= 1);
  reference_counts_.assign(static_cast<size_t>(num_blocks), 0);
  free_next_.assign(static_cast<size_t>(num_blocks), kNone);
  for (BlockId block = 0; block < num_blocks; ++block) push_free(block);
}

void BlockPool::check_block(BlockId block) const {
  QUIRE_CHECK_MSG(block >= 0 && block < num_blocks(), fmt::format("block {} of a pool of {}", block, num_blocks()));
}

int32_t BlockPool::reference_count(BlockId block) const {
  check_block(block);
  return reference_counts_[static_cast<size_t>(block)];
}

void BlockPool::push_free(BlockId block) {
  free_next_[static_cast<size_t>(block)] = kNone;
  if (free_tail_ == kNone) {
    free_head_ = block;
  } else {
    free_next_[static_cast<size_t>(free_tail_)] = block;
  }
  free_tail_ = block;
  ++num_free_;
}

bool BlockPool::allocate(int32_t count, std::vector<BlockId>& out) {
  QUIRE_CHECK(count >= 0);
  if (count > num_free_) return false;
  for (int32_t i = 0; i < count; ++i) {
    const BlockId block = free_head_;
    QUIRE_DCHECK(reference_counts_[static_cast<size_t>(block)] == 0);
    free_head_ = free_next_[static_cast<size_t>(block)];
    if (free_head_ == kNone) free_tail_ = kNone;
    --num_free_;
    reference_counts_[static_cast<size_t>(block)] = 1;
    out.push_back(block);
  }
  return true;
}

void BlockPool::share(std::span<const BlockId> blocks) {
  for (BlockId block : blocks) {
    check_block(block);
    int32_t& count = reference_counts_[static_cast<size_t>(block)];
    QUIRE_CHECK_MSG(count > 0, fmt::format("block {} is free and cannot be shared", block));
    ++count;
  }
}

void BlockPool::release(std::span<const BlockId> blocks) {
  for (BlockId block : blocks) {
    check_block(block);
    int32_t& count = reference_counts_[static_cast<size_t>(block)];
    QUIRE_CHECK_MSG(count > 0, fmt::format("block {} is released but already free", block));
    if (--count == 0) push_free(block);
  }
}

void BlockPool::check_invariants() const {
  std::vector<bool> is_free(reference_counts_.size(), false);
  int32_t listed = 0;
  BlockId last = kNone;
  for (BlockId block = free_head_; block != kNone; block = free_next_[static_cast<size_t>(block)]) {
    check_block(block);
    QUIRE_CHECK_MSG(!is_free[static_cast<size_t>(block)], fmt::format("block {} is in the free list twice", block));
    is_free[static_cast<size_t>(block)] = true;
    last = block;
    ++listed;
  }
  QUIRE_CHECK(last == free_tail_);
  QUIRE_CHECK(listed == num_free_);
  int32_t used = 0;
  for (size_t block = 0; block < reference_counts_.size(); ++block) {
    QUIRE_CHECK_MSG((reference_counts_[block] == 0) == is_free[block],
                    fmt::format("block {} has {} holders and {} in the free list", block, reference_counts_[block],
                                is_free[block] ? "is" : "is not"));
    if (!is_free[block]) ++used;
  }
  QUIRE_CHECK(num_free() + used == num_blocks());
}

}  // namespace quire::kv
