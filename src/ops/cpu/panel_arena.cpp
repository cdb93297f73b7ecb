#include "ops/cpu/panel_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/check.h"

namespace quire::ops::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMappingBytes = size_t{64} << 20;
constexpr size_t kAlignment = 64;

constexpr size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// `bytes` of memory from a huge page's border on; untouched pages of it cost nothing. nullptr: no memory.
char* map_aligned(size_t bytes) {
  void* memory = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* begin = static_cast<char*>(memory);
  const size_t before = round_up(reinterpret_cast<uintptr_t>(begin), kHugePage) - reinterpret_cast<uintptr_t>(begin);
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, kHugePage - before);
#ifdef MADV_HUGEPAGE
  // Advice only: a kernel without huge pages says no, and nothing is lost.
  madvise(begin + before, bytes, MADV_HUGEPAGE);
#endif
  return begin + before;
}

}  // namespace

PanelArena::~PanelArena() {
  for (const Mapping& mapping : mappings_) munmap(mapping.begin, mapping.bytes);
}

void* PanelArena::allocate(size_t bytes) {
  // More than an object may have: the caller's arithmetic asks for what no machine has.
  if (bytes > static_cast<size_t>(std::numeric_limits<ptrdiff_t>::max()) - kHugePage) return nullptr;
  const size_t size = round_up(std::max(bytes, size_t{1}), kAlignment);
  if (mappings_.empty() || mappings_.back().bytes - mappings_.back().used < size) {
    Mapping mapping;
    mapping.bytes = round_up(std::max(size, kMappingBytes), kHugePage);
    mapping.begin = map_aligned(mapping.bytes);
    if (mapping.begin == nullptr) return nullptr;
    mappings_.push_back(mapping);
  }
  Mapping& mapping = mappings_.back();
  char* piece = mapping.begin + mapping.used;
  mapping.used += size;
  ++mapping.pieces;
  return piece;
}

void PanelArena::release(void* memory, size_t /*bytes*/) {
  if (memory == nullptr) return;
  const auto* piece = static_cast<const char*>(memory);
  const auto mapping = std::find_if(mappings_.begin(), mappings_.end(), [piece](const Mapping& each) {
    return piece >= each.begin && piece < each.begin + each.bytes;
  });
  QUIRE_CHECK(mapping != mappings_.end());
  if (--mapping->pieces > 0) return;
  munmap(mapping->begin, mapping->bytes);
  mappings_.erase(mapping);
}

}  // namespace quire::ops::cpu
