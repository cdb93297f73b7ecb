// What kernels are measured on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace quire::bench {

// Bytes that make ordinary numbers in every format: halves of 0.06 to 0.5, small but normal bfloat16 and float32.
inline void fill_with_numbers(std::vector<uint8_t>& bytes, uint32_t seed) {
  constexpr size_t kPattern = 65537;  // a prime: repeats fall on other places of a block each time
  std::minstd_rand random(seed);
  const size_t drawn = std::min(kPattern, bytes.size());
  for (size_t i = 0; i < drawn; ++i) bytes[i] = static_cast<uint8_t>(0x2c + random() % 12);
  for (size_t at = drawn; at < bytes.size(); at += drawn) {
    std::copy_n(bytes.begin(), std::min(drawn, bytes.size() - at), bytes.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

}  // namespace quire::bench
