#include "grammar/mask_cache.h"

#include <algorithm>
#include <utility>

namespace quire::grammar {

bool MaskCache::find(const std::string& key, std::span<uint32_t> mask) const {
  const std::lock_guard lock(mutex_);
  const auto found = masks_.find(key);
  if (found == masks_.end()) return false;
  std::ranges::copy(found->second, mask.begin());
  return true;
}

void MaskCache::keep(std::string key, std::span<const uint32_t> mask) {
  constexpr size_t kOverhead = 64;  // of an entry, about
  const size_t bytes = key.size() + mask.size_bytes() + kOverhead;
  const std::lock_guard lock(mutex_);
  if (bytes_ + bytes > kMostBytes) {
    masks_.clear();
    bytes_ = 0;
  }
  if (masks_.try_emplace(std::move(key), mask.begin(), mask.end()).second) bytes_ += bytes;
}

}  // namespace quire::grammar
