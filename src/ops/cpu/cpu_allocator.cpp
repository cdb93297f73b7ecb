#include "ops/cpu/cpu_allocator.h"

#include <sys/mman.h>

#include <limits>
#include <new>

namespace quire::ops::cpu {
namespace {

constexpr std::align_val_t kLine{64};
// From here on memory is mapped, so that it goes back to the system when released.
constexpr size_t kMappedFrom = size_t{1} << 20;
// From here on it is in huge pages. The KV pool is two regions a layer: of a small one the first block alone would take
// a huge page of each.
constexpr size_t kHugeFrom = size_t{64} << 20;

}  // namespace

void* CpuAllocator::allocate(size_t bytes) {
  // More than an object may have: the caller's arithmetic asks for what no machine has.
  if (bytes > static_cast<size_t>(std::numeric_limits<ptrdiff_t>::max())) return nullptr;
  if (bytes < kMappedFrom) return ::operator new(bytes == 0 ? 1 : bytes, kLine, std::nothrow);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
#ifdef MADV_HUGEPAGE
  // Advice only: a kernel without huge pages says no, and nothing is lost.
  if (bytes >= kHugeFrom) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  return memory;
}

void CpuAllocator::release(void* memory, size_t bytes) {
  if (memory == nullptr) return;
  if (bytes < kMappedFrom) {
    ::operator delete(memory, kLine);
  } else {
    munmap(memory, bytes);
  }
}

}  // namespace quire::ops::cpu
