#include "runner/adapter_memory.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace quire::runner {
namespace {

constexpr size_t aligned_piece(size_t bytes) {
  return (std::max<size_t>(bytes, 1) + AdapterMemory::kAlign - 1) / AdapterMemory::kAlign * AdapterMemory::kAlign;
}

}  // namespace

AdapterMemory::AdapterMemory(Allocator& device, size_t bytes)
    : device_(device.device()), memory_(device, aligned_piece(bytes)) {
  if (has_memory()) free_.emplace(0, memory_.bytes());
}

void* AdapterMemory::allocate(size_t bytes) {
  const size_t wanted = aligned_piece(bytes);
  if (wanted < bytes) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(free_, [&](const auto& piece) { return piece.second >= wanted; });
  if (found == free_.end()) return nullptr;
  const auto [begin, size] = *found;
  free_.erase(found);
  if (size > wanted) free_.emplace(begin + wanted, size - wanted);
  return memory_.as<uint8_t>() + begin;
}

void AdapterMemory::release(void* memory, size_t bytes) {
  if (memory == nullptr) return;
  const auto offset = static_cast<uint8_t*>(memory) - memory_.as<uint8_t>();
  QUIRE_CHECK(offset >= 0 && static_cast<size_t>(offset) < memory_.bytes());
  const std::lock_guard lock(mutex_);
  auto piece = free_.emplace(static_cast<size_t>(offset), aligned_piece(bytes)).first;
  const auto next = std::next(piece);
  if (next != free_.end() && piece->first + piece->second == next->first) {
    piece->second += next->second;
    free_.erase(next);
  }
  if (piece == free_.begin()) return;
  const auto before = std::prev(piece);
  if (before->first + before->second != piece->first) return;
  before->second += piece->second;
  free_.erase(piece);
}

}  // namespace quire::runner
