#include "ops/cpu/panel_arena.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/check.h"
#include "base/host_memory.h"

namespace quire::ops::cpu {
namespace {

constexpr size_t kMappingBytes = size_t{64} << 20;
constexpr size_t kAlignment = 64;

constexpr size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// In large pages; untouched ones cost nothing. nullptr: no memory.
char* map_large_pages(size_t bytes) {
  void* memory = map_memory(bytes);
  if (memory != nullptr) prefer_large_pages(memory, bytes);
  return static_cast<char*>(memory);
}

}  // namespace

PanelArena::~PanelArena() {
  for (const Mapping& mapping : mappings_) unmap_memory(mapping.begin, mapping.bytes);
}

void* PanelArena::allocate(size_t bytes) {
  // More than an object may have: the caller's arithmetic asks for what no machine has.
  if (bytes > static_cast<size_t>(std::numeric_limits<ptrdiff_t>::max()) - kLargePage) return nullptr;
  const size_t size = round_up(std::max(bytes, size_t{1}), kAlignment);
  if (mappings_.empty() || mappings_.back().bytes - mappings_.back().used < size) {
    Mapping mapping;
    mapping.bytes = round_up(std::max(size, kMappingBytes), kLargePage);
    mapping.begin = map_large_pages(mapping.bytes);
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
  unmap_memory(mapping->begin, mapping->bytes);
  mappings_.erase(mapping);
}

}  // namespace quire::ops::cpu
