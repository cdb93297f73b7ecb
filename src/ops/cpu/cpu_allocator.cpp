#include "ops/cpu/cpu_allocator.h"

#include <new>

#include "base/host_memory.h"

namespace quire::ops::cpu {
namespace {

constexpr std::align_val_t kLine{64};
// From here on memory is mapped, so that it goes back to the system when released.
constexpr size_t kMappedFrom = size_t{1} << 20;
// From here on it is in large pages. The KV pool is two regions a layer: of a small one the first block alone would
// take a large page of each.
constexpr size_t kLargePagesFrom = size_t{64} << 20;

}  // namespace

void* CpuAllocator::allocate(size_t bytes) {
  if (bytes < kMappedFrom) return ::operator new(bytes == 0 ? 1 : bytes, kLine, std::nothrow);
  void* memory = map_memory(bytes);
  if (memory != nullptr && bytes >= kLargePagesFrom) prefer_large_pages(memory, bytes);
  return memory;
}

void CpuAllocator::release(void* memory, size_t bytes) {
  if (memory == nullptr) return;
  if (bytes < kMappedFrom) {
    ::operator delete(memory, kLine);
  } else {
    unmap_memory(memory, bytes);
  }
}

}  // namespace quire::ops::cpu
