// The one sum of all communicators: in the order of the ranks, so that they give the same bits.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

namespace quire::comm {

// out[i]: the sum over all parts, ((x0 + x1) + x2) + ... `out` may be one of them. REQUIRES: there is one.
inline void add_up(std::span<const float* const> parts, int64_t count, float* out) {
  constexpr int64_t kBlock = 512;
  std::array<float, kBlock> sum;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    std::copy_n(parts[0] + begin, size, sum.data());
    for (const float* part : parts.subspan(1)) {
      for (int64_t i = 0; i < size; ++i) sum[static_cast<size_t>(i)] += part[begin + i];
    }
    std::copy_n(sum.data(), size, out + begin);
  }
}

}  // namespace quire::comm
