#include "kv/block_pool.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::kv {

BlockPool::BlockPool(int32_t num_blocks) {
  QUIRE_CHECK(num_blocks >= 1);
  const auto count = static_cast<size_t>(num_blocks);
  reference_counts_.assign(count, 0);
  cached_.assign(count, 0);
  next_.resize(count + 2);
  previous_.resize(count + 2);
  for (const BlockId head : {blank_head(), cached_head()}) {
    next_[static_cast<size_t>(head)] = head;
    previous_[static_cast<size_t>(head)] = head;
  }
  for (BlockId block = num_blocks - 1; block >= 0; --block) push_free(block);
}

void BlockPool::check_block(BlockId block) const {
  QUIRE_CHECK_MSG(block >= 0 && block < num_blocks(), fmt::format("block {} of a pool of {}", block, num_blocks()));
}

int32_t BlockPool::reference_count(BlockId block) const {
  check_block(block);
  return reference_counts_[static_cast<size_t>(block)];
}

bool BlockPool::cached(BlockId block) const {
  check_block(block);
  return cached_[static_cast<size_t>(block)] != 0;
}

void BlockPool::link_after(BlockId place, BlockId block) {
  const BlockId after = next_[static_cast<size_t>(place)];
  next_[static_cast<size_t>(place)] = block;
  previous_[static_cast<size_t>(block)] = place;
  next_[static_cast<size_t>(block)] = after;
  previous_[static_cast<size_t>(after)] = block;
}

void BlockPool::unlink(BlockId block) {
  const BlockId before = previous_[static_cast<size_t>(block)];
  const BlockId after = next_[static_cast<size_t>(block)];
  next_[static_cast<size_t>(before)] = after;
  previous_[static_cast<size_t>(after)] = before;
  --num_free_;
  num_cached_ -= cached_[static_cast<size_t>(block)];
}

void BlockPool::push_free(BlockId block) {
  const bool cached = cached_[static_cast<size_t>(block)] != 0;
  // Blank blocks are a stack, cached ones a queue.
  link_after(cached ? previous_[static_cast<size_t>(cached_head())] : blank_head(), block);
  ++num_free_;
  num_cached_ += cached_[static_cast<size_t>(block)];
}

bool BlockPool::allocate(int32_t count, std::vector<BlockId>& out) {
  QUIRE_CHECK(count >= 0);
  if (count > num_free_) return false;
  for (int32_t i = 0; i < count; ++i) {
    const BlockId blank = next_[static_cast<size_t>(blank_head())];
    const BlockId block = blank != blank_head() ? blank : next_[static_cast<size_t>(cached_head())];
    QUIRE_DCHECK(reference_counts_[static_cast<size_t>(block)] == 0);
    unlink(block);
    cached_[static_cast<size_t>(block)] = 0;
    reference_counts_[static_cast<size_t>(block)] = 1;
    out.push_back(block);
  }
  return true;
}

void BlockPool::hold(BlockId block) {
  check_block(block);
  int32_t& count = reference_counts_[static_cast<size_t>(block)];
  if (count == 0) {
    QUIRE_CHECK_MSG(cached(block), fmt::format("block {} is free and keeps nothing that could be held", block));
    unlink(block);
  }
  ++count;
}

void BlockPool::release(BlockId block) {
  check_block(block);
  int32_t& count = reference_counts_[static_cast<size_t>(block)];
  QUIRE_CHECK_MSG(count > 0, fmt::format("block {} is released but already free", block));
  if (--count == 0) push_free(block);
}

void BlockPool::set_cached(BlockId block, bool cached) {
  check_block(block);
  const bool is_free = reference_counts_[static_cast<size_t>(block)] == 0;
  if (is_free) unlink(block);
  cached_[static_cast<size_t>(block)] = cached ? 1 : 0;
  if (is_free) push_free(block);
}

void BlockPool::check_invariants() const {
  std::vector<bool> listed(reference_counts_.size(), false);
  int32_t num_listed = 0;
  int32_t num_cached = 0;
  for (const BlockId head : {blank_head(), cached_head()}) {
    BlockId before = head;
    for (BlockId block = next_[static_cast<size_t>(head)]; block != head; block = next_[static_cast<size_t>(block)]) {
      check_block(block);
      QUIRE_CHECK_MSG(!listed[static_cast<size_t>(block)], fmt::format("block {} is in the free lists twice", block));
      QUIRE_CHECK(previous_[static_cast<size_t>(block)] == before);
      QUIRE_CHECK(cached(block) == (head == cached_head()));
      listed[static_cast<size_t>(block)] = true;
      before = block;
      ++num_listed;
      if (head == cached_head()) ++num_cached;
    }
    QUIRE_CHECK(previous_[static_cast<size_t>(head)] == before);
  }
  QUIRE_CHECK(num_listed == num_free_);
  QUIRE_CHECK(num_cached == num_cached_);
  for (size_t block = 0; block < reference_counts_.size(); ++block) {
    QUIRE_CHECK_MSG((reference_counts_[block] == 0) == listed[block],
                    fmt::format("block {} has {} holders and {} in a free list", block, reference_counts_[block],
                                listed[block] ? "is" : "is not"));
  }
}

}  // namespace quire::kv
