#include "ops/cpu/cpu_allocator.h"

#include <cstdint>
#include <limits>
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

// Pieces that begin with a large page would all begin in the same set of a cache, as would every same place of many
// alike: a step that reads the same product of 32 adapters would find room for as many as a set has lines, 8. So each
// begins somewhat further than the one before, over the 2,048 sets of a second cache of 1 MiB.
constexpr size_t kLineBytes = 64;
constexpr size_t kSets = 2048;
constexpr size_t kStepLines = 65;

}  // namespace

void* CpuAllocator::allocate(size_t bytes) {
  if (bytes < kMappedFrom) return ::operator new(bytes == 0 ? 1 : bytes, kLine, std::nothrow);
  if (bytes < kLargePage) return map_memory(bytes);
  const size_t before = next_piece_.fetch_add(1, std::memory_order_relaxed) * kStepLines % kSets * kLineBytes;
  // More than an object may have: the caller's arithmetic asks for what no machine has.
  if (bytes > static_cast<size_t>(std::numeric_limits<ptrdiff_t>::max()) - before) return nullptr;
  auto* page = static_cast<char*>(map_memory(before + bytes));
  if (page == nullptr) return nullptr;
  if (bytes >= kLargePagesFrom) prefer_large_pages(page, before + bytes);
  return page + before;
}

void CpuAllocator::release(void* memory, size_t bytes) {
  if (memory == nullptr) return;
  if (bytes < kMappedFrom) {
    ::operator delete(memory, kLine);
  } else {
    const size_t before = bytes < kLargePage ? 0 : reinterpret_cast<uintptr_t>(memory) % kLargePage;
    unmap_memory(static_cast<char*>(memory) - before, before + bytes);
  }
}

}  // namespace quire::ops::cpu
