#include "tensor/keeping_allocator.h"

#include <algorithm>

namespace quire {

KeepingAllocator::~KeepingAllocator() {
  for (const Piece& piece : kept_) from_.release(piece.memory, piece.bytes);
}

void* KeepingAllocator::allocate(size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(kept_, bytes, &Piece::bytes);
    if (found != kept_.end()) {
      void* memory = found->memory;
      kept_.erase(found);
      return memory;
    }
  }
  return from_.allocate(bytes);
}

void KeepingAllocator::release(void* memory, size_t bytes) {
  Piece leaving{memory, bytes};
  if (memory != nullptr && bytes <= most_bytes_) {
    const std::lock_guard lock(mutex_);
    kept_.push_back(leaving);
    leaving = {};
    if (kept_.size() > kMostPieces) {
      leaving = kept_.front();
      kept_.pop_front();
    }
  }
  if (leaving.memory != nullptr) from_.release(leaving.memory, leaving.bytes);
}

}  // namespace quire
