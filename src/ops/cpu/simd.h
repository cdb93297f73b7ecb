// Eight floats at a time, in the compiler's own vectors; only what they cannot say is an intrinsic. Included by
// *.kernels.cpp alone: everything is internal to the translation unit and in the namespace of its instruction set
// (QUIRE_ISA).
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define QUIRE_INLINE static inline __attribute__((always_inline, unused))

namespace quire::ops::cpu::QUIRE_ISA {

constexpr int kLanes = 8;
typedef float F8 __attribute__((vector_size(32)));
typedef int32_t I8 __attribute__((vector_size(32)));
typedef float F8Unaligned __attribute__((vector_size(32), aligned(4), may_alias));

QUIRE_INLINE F8 load(const float* p) {
  return *reinterpret_cast<const F8Unaligned*>(p);
}
QUIRE_INLINE void store(float* p, F8 v) {
  *reinterpret_cast<F8Unaligned*>(p) = v;
}
QUIRE_INLINE F8 broadcast(float x) {
  return F8{x, x, x, x, x, x, x, x};
}
QUIRE_INLINE F8 zero() {
  return F8{};
}

// a * b + c; rounded once where the set has the instruction.
QUIRE_INLINE F8 fma(F8 a, F8 b, F8 c) {
#if defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__FP_FAST_FMAF)
  F8 result;
  for (int i = 0; i < kLanes; ++i) result[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return result;
#else
  return a * b + c;
#endif
}

// The same for one float: the bits that a lane of the vector form would have.
QUIRE_INLINE float fma(float a, float b, float c) {
#if defined(__AVX2__) || defined(__FP_FAST_FMAF)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// Where b is not a number, so is the result.
QUIRE_INLINE F8 max(F8 a, F8 b) {
#if defined(__AVX2__)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}
QUIRE_INLINE F8 min(F8 a, F8 b) {
#if defined(__AVX2__)
  return _mm256_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}

// Lanes exchanged with those 4, 2 and 1 places away: three such steps make every lane see all.
template <typename V>
QUIRE_INLINE V swap_fours(V v) {
  return __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
}
template <typename V>
QUIRE_INLINE V swap_twos(V v) {
  return __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
}
template <typename V>
QUIRE_INLINE V swap_ones(V v) {
  return __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6);
}

// Sum and largest of the lanes, paired the same way always.
QUIRE_INLINE float sum(F8 v) {
  v += swap_fours(v);
  v += swap_twos(v);
  return (v + swap_ones(v))[0];
}
QUIRE_INLINE float largest(F8 v) {
#if defined(__AVX2__)
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
#else
  v = max(swap_fours(v), v);
  v = max(swap_twos(v), v);
  return max(swap_ones(v), v)[0];
#endif
}
QUIRE_INLINE I8 larger(I8 a, I8 b) {
#if defined(__AVX2__)
  return (I8)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
  return a > b ? a : b;
#endif
}

// Integers of a row that holds NaN may be of any size: their sums and products wrap.
template <class V>
QUIRE_INLINE V wrapping_sum(V a, V b) {
  typedef uint32_t Unsigned __attribute__((vector_size(sizeof(V))));
  return (V)((Unsigned)a + (Unsigned)b);
}
template <class V>
QUIRE_INLINE V wrapping_product(V a, int32_t factor) {
  typedef uint32_t Unsigned __attribute__((vector_size(sizeof(V))));
  return (V)((Unsigned)a * static_cast<uint32_t>(factor));
}

// 8 bytes to 8 lanes.
QUIRE_INLINE I8 load_unsigned_bytes(const uint8_t* p) {
#if defined(__AVX2__)
  return (I8)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  typedef uint8_t U8x8 __attribute__((vector_size(8)));
  U8x8 bytes;
  std::memcpy(&bytes, p, sizeof(bytes));
  return __builtin_convertvector(bytes, I8);
#endif
}
QUIRE_INLINE I8 load_signed_bytes(const uint8_t* p) {
#if defined(__AVX2__)
  return (I8)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  typedef int8_t I8x8 __attribute__((vector_size(8)));
  I8x8 bytes;
  std::memcpy(&bytes, p, sizeof(bytes));
  return __builtin_convertvector(bytes, I8);
#endif
}
QUIRE_INLINE F8 to_float(I8 v) {
#if defined(__AVX2__)
  return _mm256_cvtepi32_ps((__m256i)v);
#else
  return __builtin_convertvector(v, F8);
#endif
}

// 8 values of 16 bits, zero-extended.
QUIRE_INLINE I8 load_unsigned_shorts(const uint8_t* p) {
#if defined(__AVX2__)
  return (I8)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  typedef uint16_t U16x8 __attribute__((vector_size(16)));
  U16x8 shorts;
  std::memcpy(&shorts, p, sizeof(shorts));
  return __builtin_convertvector(shorts, I8);
#endif
}

// The lower 8 or 16 bits of 8 numbers. (What GCC 12 makes of a conversion of vectors with AVX2 is 36 instructions.)
template <typename Narrow>
QUIRE_INLINE void store_narrowed(I8 v, Narrow* out) {
  static_assert(sizeof(Narrow) <= 2);
#if defined(__AVX2__) && !defined(__AVX512VL__)
  constexpr bool kBytes = sizeof(Narrow) == 1;
  const __m256i pick = kBytes ? _mm256_set1_epi64x(0x0c080400) : _mm256_set1_epi64x(0x0d0c090805040100);
  const __m256i picked = _mm256_shuffle_epi8((__m256i)v, pick);
  const __m128i low = _mm256_castsi256_si128(picked);
  const __m128i high = _mm256_extracti128_si256(picked, 1);
  if constexpr (kBytes) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_unpacklo_epi32(low, high));
  } else {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_unpacklo_epi64(low, high));
  }
#else
  typedef Narrow Narrows __attribute__((vector_size(kLanes * sizeof(Narrow))));
  const Narrows narrowed = __builtin_convertvector(v, Narrows);
  std::memcpy(out, &narrowed, sizeof(narrowed));
#endif
}

QUIRE_INLINE F8 load_bfloat16(const uint8_t* p) {
  return (F8)(load_unsigned_shorts(p) << 16);
}

// IEEE 754 binary16. Without the instruction: exponent and fraction moved to a float's place are the value times
// 2^-112, denormals too; infinity and NaN then want their exponent back.
#if !defined(__F16C__)
QUIRE_INLINE F8 half_to_float(I8 bits) {
  const I8 magnitude = (bits & 0x7fff) << 13;
  const I8 finite = (I8)((F8)magnitude * 0x1p112f);
  const I8 special = (I8)(magnitude >= (0x7c00 << 13)) & 0x7f800000;
  return (F8)(finite | special | ((bits & 0x8000) << 16));
}
#endif
QUIRE_INLINE F8 load_half(const uint8_t* p) {
#if defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  return half_to_float(load_unsigned_shorts(p));
#endif
}
QUIRE_INLINE float half_to_float(uint16_t half) {
  uint8_t bytes[16] = {};
  std::memcpy(bytes, &half, sizeof(half));
  return load_half(bytes)[0];
}

}  // namespace quire::ops::cpu::QUIRE_ISA
