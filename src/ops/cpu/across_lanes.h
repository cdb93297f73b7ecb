// One number from each of many vectors at once: what is found by halving costs a few shuffles for all of them together.
// Included by *.kernels.cpp alone, as simd.h is.
#pragma once

#include "ops/cpu/simd_wide.h"

namespace quire::ops::cpu::QUIRE_ISA {

// What is found: sums, which wrap, and the largest.
constexpr auto kPlus = [](auto a, auto b) { return wrapping_sum(a, b); };
constexpr auto kLarger = [](auto a, auto b) { return larger(a, b); };

// Lanes 0, 1, 4, 5 (first) and 2, 3, 6, 7 (second) of vectors 0 and 1 in turn, then of 2 and 3.
struct Quarters {
  I8 first[2];
  I8 second[2];
};
QUIRE_INLINE Quarters quarters(const I8 (&v)[4]) {
  Quarters result;
  for (int pair = 0; pair < 2; ++pair) {
    result.first[pair] = __builtin_shufflevector(v[2 * pair], v[2 * pair + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    result.second[pair] = __builtin_shufflevector(v[2 * pair], v[2 * pair + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  return result;
}
// Lane g of the result: `combine` of the four lanes that come from v[g].
template <class Combine>
QUIRE_INLINE I8 across(I8 v01, I8 v23, Combine combine) {
  const I8 halves = combine(__builtin_shufflevector(v01, v23, 0, 1, 8, 9, 4, 5, 12, 13),
                            __builtin_shufflevector(v01, v23, 2, 3, 10, 11, 6, 7, 14, 15));
  return combine(halves, swap_fours(halves));
}

#if QUIRE_WIDE_LANES == 16

typedef int32_t I4 __attribute__((vector_size(16)));

// Lane i of a quarter (four lanes) of the result: `combine` of what that quarter of the i-th vector has.
template <class Combine>
QUIRE_INLINE IW across_quarters(IW a, IW b, IW c, IW d, Combine combine) {
  const auto halved = [&](IW v, IW w) {
    return combine(__builtin_shufflevector(v, w, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29),
                   __builtin_shufflevector(v, w, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31));
  };
  const IW ab = halved(a, b);
  const IW cd = halved(c, d);
  return combine(__builtin_shufflevector(ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
                 __builtin_shufflevector(ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31));
}

// Lane i of the result: `combine` of all lanes of v[i].
template <class Combine>
QUIRE_INLINE IW across_lanes(const IW (&v)[16], Combine combine) {
  const auto halved = [&](IW a, IW b) {
    return combine(__builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27),
                   __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31));
  };
  IW fours[4];
  for (int i = 0; i < 4; ++i) fours[i] = across_quarters(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3], combine);
  return halved(halved(fours[0], fours[1]), halved(fours[2], fours[3]));
}

// The lowest bytes of four vectors one after the other.
QUIRE_INLINE IW lowest_bytes(const IW (&v)[4]) {
  I4 quarters[4];
  for (int i = 0; i < 4; ++i) {
#if defined(__AVX512F__)
    quarters[i] = (I4)_mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)v[i]);
#else
    int8_t bytes[16];
    for (int lane = 0; lane < 16; ++lane) bytes[lane] = static_cast<int8_t>(v[i][lane]);
    std::memcpy(&quarters[i], bytes, sizeof(bytes));
#endif
  }
  const I8 lower = __builtin_shufflevector(quarters[0], quarters[1], 0, 1, 2, 3, 4, 5, 6, 7);
  const I8 upper = __builtin_shufflevector(quarters[2], quarters[3], 0, 1, 2, 3, 4, 5, 6, 7);
  return __builtin_shufflevector(lower, upper, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

#endif

}  // namespace quire::ops::cpu::QUIRE_ISA
