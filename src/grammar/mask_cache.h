// Masks that took long to make, kept for when an answer is at the same place again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace quire::grammar {

// Of one vocabulary. Any thread.
class MaskCache {
 public:
  // False: it is not there, and the mask is as it was. REQUIRES: the mask has the size of those that were kept.
  bool find(const std::string& key, std::span<uint32_t> mask) const;
  // When there is no more room all others are forgotten.
  void keep(std::string key, std::span<const uint32_t> mask);

 private:
  static constexpr size_t kMostBytes = size_t{32} << 20;

  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::vector<uint32_t>> masks_;
  size_t bytes_ = 0;
};

}  // namespace quire::grammar
