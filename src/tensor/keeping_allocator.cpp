#include "tensor/keeping_allocator.h"

#include <algorithm>
#include <cstring>

#include "base/host_memory.h"

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

bool KeepingAllocator::prepare(size_t bytes) {
  if (bytes > most_bytes_) return false;
  {
    const std::lock_guard lock(mutex_);
    if (std::ranges::find(kept_, bytes, &Piece::bytes) != kept_.end()) return true;
  }
  void* memory = from_.allocate(bytes);
  if (memory == nullptr) return false;
  prefer_large_pages(memory, bytes);
  std::memset(memory, 0, bytes);
  release(memory, bytes);
  return true;
}

}  // namespace quire
