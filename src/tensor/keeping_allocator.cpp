#include "tensor/keeping_allocator.h"

#include <utility>

namespace quire {

KeepingAllocator::~KeepingAllocator() {
  if (kept_ != nullptr) from_.release(kept_, kept_bytes_);
}

void* KeepingAllocator::allocate(size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (kept_ != nullptr && kept_bytes_ == bytes) return std::exchange(kept_, nullptr);
  }
  return from_.allocate(bytes);
}

void KeepingAllocator::release(void* memory, size_t bytes) {
  if (memory != nullptr && bytes <= most_bytes_) {
    const std::lock_guard lock(mutex_);
    std::swap(memory, kept_);
    std::swap(bytes, kept_bytes_);
  }
  if (memory != nullptr) from_.release(memory, bytes);
}

}  // namespace quire
