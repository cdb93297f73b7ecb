// The slices of stored weights (weight_slices.cuh) as what tensor cores multiply: halves, of BF16 BF16. What a format's
// SliceFactors says:
//   Of          __half or __nv_bfloat16
//   kEvenFirst  quads come as (0, 2), (1, 3) instead of (0, 1), (2, 3)
//   quad()      quad j as two pairs of numbers
// Codes of few bits become halves without a conversion: below the exponent of 1024 a code is the half 1024 + code,
// which a subtraction makes exact; scale and minimum, rounded to halves, then take one fused step for two codes.
#pragma once

#include "ops/cuda/coded_slices.cuh"
#include "ops/cuda/tensor_cores.cuh"

namespace quire::ops::cuda {

__device__ inline __half2 as_halves(unsigned bits) {
  __half2 halves;
  memcpy(static_cast<void*>(&halves), &bits, sizeof(bits));
  return halves;
}
__device__ inline unsigned as_bits(__half2 halves) {
  unsigned bits;
  memcpy(&bits, &halves, sizeof(bits));
  return bits;
}
__device__ inline __half2 twice(float x) {
  return __floats2half2_rn(x, x);
}
// (word & mask) | bits in one instruction: the compiler has one for each of two constants.
__device__ inline unsigned and_or(unsigned word, unsigned mask, unsigned bits) {
#ifdef __CUDACC__
  unsigned result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(bits));
  return result;
#else
  return (word & mask) | bits;
#endif
}
// The first or second of a pair, twice.
__device__ inline __half2 first_twice(unsigned pair) {
  return as_halves(__byte_perm(pair, pair, 0x1010));
}
__device__ inline __half2 second_twice(unsigned pair) {
  return as_halves(__byte_perm(pair, pair, 0x3232));
}

// Through floats, each rounded once: what has no shorter way.
template <DType kType>
struct SliceFactors {
  using Lanes = Slice<kType>;
  using Of = __half;
  static constexpr bool kEvenFirst = false;
  static constexpr int kGroups = Lanes::kGroups == 0 ? 1 : Lanes::kGroups;
  typename Lanes::Codes codes;
  float scale[kGroups];
  float minimum[kGroups];

  SliceFactors() = default;
  __device__ SliceFactors(const typename Lanes::Raw& raw, int slice, int columns) : codes(raw, slice, columns) {
    if constexpr (Lanes::kGroups > 0) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        scale[g] = codes.scale(g) * Lanes::kUnit;
        float offset = Lanes::kOffset;
        if constexpr (requires { codes.zero(g); }) offset += codes.zero(g);
        minimum[g] = -offset * scale[g];
        if constexpr (Lanes::kHasMinimum) minimum[g] += codes.minimum(g);
      }
    }
  }
  __device__ void quad(int j, unsigned& first, unsigned& second) const {
    float v[4];
    codes.decode(j, v);
    if constexpr (Lanes::kGroups > 0) {
      const int g = j / (Lanes::kQuads / kGroups);
#pragma unroll
      for (float& x : v) x = fmaf(x, scale[g], minimum[g]);
    }
    first = pair_of<Of>(v[0], v[1]);
    second = pair_of<Of>(v[2], v[3]);
  }
};

// Whole values of 16 bits.
template <DType kType, typename T>
struct PlainFactors {
  using Of = T;
  static constexpr bool kEvenFirst = false;
  typename Slice<kType>::Codes codes;
  PlainFactors() = default;
  __device__ PlainFactors(const typename Slice<kType>::Raw& raw, int slice, int columns) : codes(raw, slice, columns) {}
  __device__ void quad(int j, unsigned& first, unsigned& second) const {
    first = codes.words[2 * j];
    second = codes.words[2 * j + 1];
  }
};
template <>
struct SliceFactors<DType::kF16> : PlainFactors<DType::kF16, __half> {
  using PlainFactors::PlainFactors;
};
template <>
struct SliceFactors<DType::kBF16> : PlainFactors<DType::kBF16, __nv_bfloat16> {
  using PlainFactors::PlainFactors;
};

// 8-bit floats: each is a half. The row's scale is for the sums.
template <>
struct SliceFactors<DType::kF8E4M3> {
  using Of = __half;
  static constexpr bool kEvenFirst = false;
  Slice<DType::kF8E4M3>::Codes codes;
  SliceFactors() = default;
  __device__ SliceFactors(const Slice<DType::kF8E4M3>::Raw& raw, int slice, int columns) : codes(raw, slice, columns) {}
  __device__ void quad(int j, unsigned& first, unsigned& second) const {
    first = halves_of_float8(codes.words[j] & 0xffffu);
    second = halves_of_float8(codes.words[j] >> 16);
  }
};

// Codes of four bits: of quad j the lower halves of word j's bytes, from quad 4 on the upper halves of word j - 4's.
// kLess: what a code is too much.
template <DType kType, int kLess>
struct NibbleFactors {
  using Lanes = Slice<kType>;
  using Of = __half;
  static constexpr bool kEvenFirst = true;
  uint32_t words[4];
  __half2 scale[Lanes::kGroups];
  __half2 minimum[Lanes::kGroups];

  NibbleFactors() = default;
  __device__ NibbleFactors(const typename Lanes::Raw& raw, int slice, int columns) {
    const typename Lanes::Codes codes(raw, slice, columns);
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = codes.words[i];
#pragma unroll
    for (int g = 0; g < Lanes::kGroups; ++g) {
      scale[g] = twice(codes.scale(g));
      float least = -kLess * codes.scale(g);
      if constexpr (Lanes::kHasMinimum) least += codes.minimum(g);
      minimum[g] = twice(least);
    }
  }
  __device__ void quad(int j, unsigned& first, unsigned& second) const {
    const int g = j / (Lanes::kQuads / Lanes::kGroups);
    first = values(words[j % 4], j, g);
    second = values(words[j % 4] >> 8, j, g);
  }

 private:
  __device__ unsigned values(uint32_t word, int j, int g) const {
    __half2 codes;
    if (j < 4) {
      codes = __hadd2(as_halves(and_or(word, 0x000f000fu, 0x64006400u)), twice(-1024.0f));
    } else {  // 1024 + 16 code
      codes = __hfma2(as_halves(and_or(word, 0x00f000f0u, 0x64006400u)), twice(0.0625f), twice(-64.0f));
    }
    return as_bits(__hfma2(codes, scale[g], minimum[g]));
  }
};
template <>
struct SliceFactors<DType::kQ4_0> : NibbleFactors<DType::kQ4_0, 8> {
  using NibbleFactors::NibbleFactors;
};
template <>
struct SliceFactors<DType::kQ4_1> : NibbleFactors<DType::kQ4_1, 0> {
  using NibbleFactors::NibbleFactors;
};

// Scales and minimums of a slice's two groups, neighbours, are decoded together: products of whole numbers below 64 and
// halves, each rounded once.
template <>
struct SliceFactors<DType::kQ4_K> : NibbleFactors<DType::kQ4_K, 0> {
  SliceFactors() = default;
  __device__ SliceFactors(const Lanes::Raw& raw, int slice, int columns) {
    const Lanes::Codes codes(raw, slice, columns);
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = codes.words[i];
    // As scale_and_minimum() does, of groups 2 run and 2 run + 1 in the lower two bytes.
    const unsigned run = static_cast<unsigned>(slice) % 8 / 2;
    const unsigned shift = run % 2 * 16;
    const uint32_t low_s = codes.header[1] >> shift;
    const uint32_t low_m = codes.header[2] >> shift;
    const uint32_t late = codes.header[3] >> shift;
    const bool is_late = run >= 2;
    const uint32_t s = is_late ? (late & 0x0f0fu) | ((low_s >> 2) & 0x3030u) : low_s & 0x3f3fu;
    const uint32_t m = is_late ? ((late >> 4) & 0x0f0fu) | ((low_m >> 2) & 0x3030u) : low_m & 0x3f3fu;
    const unsigned scales = as_bits(__hmul2(halves_of_bytes(s), first_twice(codes.header[0])));
    const unsigned minimums = as_bits(__hmul2(halves_of_bytes(m), second_twice(codes.header[0] ^ 0x80000000u)));
    scale[0] = first_twice(scales);
    scale[1] = second_twice(scales);
    minimum[0] = first_twice(minimums);
    minimum[1] = second_twice(minimums);
  }

 private:
  static __device__ __half2 halves_of_bytes(uint32_t bytes) {
    return __hadd2(as_halves(__byte_perm(bytes, 0x64646464u, 0x4140)), twice(-1024.0f));
  }
};

// Codes less a whole z, which is exact; then one product.
template <DType kType>
struct ZeroedNibbleFactors {
  using Lanes = Slice<kType>;
  using Of = __half;
  static constexpr bool kEvenFirst = true;
  uint32_t words[4];
  __half2 scale;
  __half2 less[2];  // of codes above 1024, and of 64

  ZeroedNibbleFactors() = default;
  __device__ ZeroedNibbleFactors(const typename Lanes::Raw& raw, int slice, int columns) {
    const typename Lanes::Codes codes(raw, slice, columns);
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = codes.words[i];
    scale = twice(codes.d);
    less[0] = twice(-1024 - codes.z);
    less[1] = twice(-64 - codes.z);
  }
  __device__ void quad(int j, unsigned& first, unsigned& second) const {
    first = values(words[j % 4], j);
    second = values(words[j % 4] >> 8, j);
  }

 private:
  __device__ unsigned values(uint32_t word, int j) const {
    if (j < 4) return as_bits(__hmul2(__hadd2(as_halves(and_or(word, 0x000f000fu, 0x64006400u)), less[0]), scale));
    const __half2 sixteens = as_halves(and_or(word, 0x00f000f0u, 0x64006400u));  // 1024 + 16 code
    return as_bits(__hmul2(__hfma2(sixteens, twice(0.0625f), less[1]), scale));
  }
};
template <>
struct SliceFactors<DType::kU4_32> : ZeroedNibbleFactors<DType::kU4_32> {
  using ZeroedNibbleFactors::ZeroedNibbleFactors;
};
template <>
struct SliceFactors<DType::kU4_64> : ZeroedNibbleFactors<DType::kU4_64> {
  using ZeroedNibbleFactors::ZeroedNibbleFactors;
};
template <>
struct SliceFactors<DType::kU4_128> : ZeroedNibbleFactors<DType::kU4_128> {
  using ZeroedNibbleFactors::ZeroedNibbleFactors;
};

// Codes of a byte with a sign.
template <>
struct SliceFactors<DType::kQ8_0> {
  using Lanes = Slice<DType::kQ8_0>;
  using Of = __half;
  static constexpr bool kEvenFirst = true;
  uint32_t words[8];
  __half2 scale;
  SliceFactors() = default;
  __device__ SliceFactors(const Lanes::Raw& raw, int slice, int columns) {
    const Lanes::Codes codes(raw, slice, columns);
#pragma unroll
    for (int i = 0; i < 8; ++i) words[i] = codes.words[i];
    scale = twice(codes.scale(0));
  }
  __device__ void quad(int j, unsigned& first, unsigned& second) const {
    const uint32_t bytes = words[j] ^ 0x80808080u;
    first = value(__byte_perm(bytes, 0x64646464u, 0x4240));
    second = value(__byte_perm(bytes, 0x64646464u, 0x4341));
  }

 private:
  __device__ unsigned value(unsigned halves) const {  // 1024 + 128 + code
    return as_bits(__hmul2(__hadd2(as_halves(halves), twice(-1152.0f)), scale));
  }
};

}  // namespace quire::ops::cuda
