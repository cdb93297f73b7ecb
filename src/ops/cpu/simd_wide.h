// Vectors for matrix products, whose tiles are 16 columns wide, and for attention: 8 lanes with AVX2, else 16. The
// portable build has 16 like AVX-512, so that a machine without it still tests all but its instructions. Included by
// *.kernels.cpp alone, as simd.h is.
#pragma once

#include "ops/cpu/simd.h"

#if defined(__AVX2__) && !defined(__AVX512F__)
#define QUIRE_WIDE_LANES 8
#else
#define QUIRE_WIDE_LANES 16
#endif

namespace quire::ops::cpu::QUIRE_ISA {

#if QUIRE_WIDE_LANES == 8
constexpr int kWide = kLanes;
typedef F8 FW;
typedef I8 IW;

QUIRE_INLINE FW load_halves(const uint8_t* p) {
  return load_half(p);
}
QUIRE_INLINE IW load_unsigned_byte_lanes(const uint8_t* p) {
  return load_unsigned_bytes(p);
}
QUIRE_INLINE IW load_signed_byte_lanes(const uint8_t* p) {
  return load_signed_bytes(p);
}
QUIRE_INLINE FW ints_to_floats(IW v) {
  return to_float(v);
}
#else
constexpr int kWide = 16;
typedef float FW __attribute__((vector_size(64)));
typedef int32_t IW __attribute__((vector_size(64)));

QUIRE_INLINE FW ints_to_floats(IW v) {
  return __builtin_convertvector(v, FW);
}
QUIRE_INLINE F8 lower_half(FW v) {
  return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
}
QUIRE_INLINE F8 upper_half(FW v) {
  return __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
}
QUIRE_INLINE FW joined(F8 lower, F8 upper) {
  return __builtin_shufflevector(lower, upper, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
QUIRE_INLINE float sum(FW v) {
  return sum(lower_half(v) + upper_half(v));
}
QUIRE_INLINE float largest(FW v) {
  return largest(max(lower_half(v), upper_half(v)));
}

#if defined(__AVX512F__)
QUIRE_INLINE FW fma(FW a, FW b, FW c) {
  return _mm512_fmadd_ps(a, b, c);
}
// Where b is not a number, so is the result.
QUIRE_INLINE FW max(FW a, FW b) {
  return _mm512_maskz_max_ps(0xffff, a, b);
}
QUIRE_INLINE FW min(FW a, FW b) {
  return _mm512_maskz_min_ps(0xffff, a, b);
}
QUIRE_INLINE IW larger(IW a, IW b) {
  return (IW)_mm512_maskz_max_epi32(0xffff, (__m512i)a, (__m512i)b);
}
// GCC 12 knows no conversion of 16 bytes to 16 lanes: it would take them one by one.
QUIRE_INLINE IW load_unsigned_byte_lanes(const uint8_t* p) {
  return (IW)_mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
QUIRE_INLINE IW load_signed_byte_lanes(const uint8_t* p) {
  return (IW)_mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
QUIRE_INLINE FW load_halves(const uint8_t* p) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
#else
template <typename Narrow>
QUIRE_INLINE IW widened(const uint8_t* p) {
  typedef Narrow Narrows __attribute__((vector_size(kWide * sizeof(Narrow))));
  Narrows narrow;
  std::memcpy(&narrow, p, sizeof(narrow));
  return __builtin_convertvector(narrow, IW);
}
QUIRE_INLINE IW load_unsigned_byte_lanes(const uint8_t* p) {
  return widened<uint8_t>(p);
}
QUIRE_INLINE IW load_signed_byte_lanes(const uint8_t* p) {
  return widened<int8_t>(p);
}
QUIRE_INLINE FW fma(FW a, FW b, FW c) {
#if defined(__FP_FAST_FMAF)
  FW result;
  for (int i = 0; i < kWide; ++i) result[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return result;
#else
  return a * b + c;
#endif
}
QUIRE_INLINE FW max(FW a, FW b) {
  return a > b ? a : b;
}
QUIRE_INLINE FW min(FW a, FW b) {
  return a < b ? a : b;
}
QUIRE_INLINE IW larger(IW a, IW b) {
  return a > b ? a : b;
}
QUIRE_INLINE FW load_halves(const uint8_t* p) {
  return joined(load_half(p), load_half(p + 2 * kLanes));
}
#endif
#endif
typedef uint32_t UW __attribute__((vector_size(sizeof(IW))));

// F8_E4M3 by the bits of a half (or of a float), whose exponent has another bias: the values / 256. 480 / 256 in place
// of NaN.
QUIRE_INLINE FW load_f8e4m3s(const uint8_t* p) {
#if defined(__AVX512F__)
  const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 7);
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_and_si256(wide, _mm256_set1_epi16(static_cast<int16_t>(0xbf80))));
#elif defined(__AVX2__)
  const __m128i wide = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))), 7);
  return _mm256_cvtph_ps(_mm_and_si128(wide, _mm_set1_epi16(static_cast<int16_t>(0xbf80))));
#else
  const IW code = load_unsigned_byte_lanes(p);
  return (FW)((code & 0x7f) << 20 | (code & 0x80) << 24) * 0x1p112f;
#endif
}

typedef float FWUnaligned __attribute__((vector_size(sizeof(FW)), aligned(4), may_alias));

QUIRE_INLINE FW load_wide(const float* p) {
  return *reinterpret_cast<const FWUnaligned*>(p);
}
QUIRE_INLINE void store_wide(float* p, FW v) {
  *reinterpret_cast<FWUnaligned*>(p) = v;
}
// The first `count` floats of a vector.
QUIRE_INLINE FW load_some(const float* p, int64_t count) {
  float padded[kWide] = {};
  std::memcpy(padded, p, static_cast<size_t>(count) * sizeof(float));
  return load_wide(padded);
}
QUIRE_INLINE void store_some(float* p, FW v, int64_t count) {
  float padded[kWide];
  store_wide(padded, v);
  std::memcpy(p, padded, static_cast<size_t>(count) * sizeof(float));
}

// Not 0 + x, which is not x for -0.
QUIRE_INLINE FW broadcast_wide(float x) {
  return x - FW{};
}

QUIRE_INLINE IW load_ints(const uint8_t* p) {
  IW v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// levels[nibble] for bytes 0..15. `levels`: 16 of them, aligned.
QUIRE_INLINE IW look_up(const int8_t* levels, IW nibbles) {
#if defined(__AVX512BW__)
  const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(levels));
  return (IW)_mm512_shuffle_epi8(_mm512_maskz_broadcast_i32x4(0xffff, table), (__m512i)nibbles);
#elif defined(__AVX2__)
  const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(levels));
  return (IW)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), (__m256i)nibbles);
#else
  uint8_t bytes[sizeof(IW)];
  std::memcpy(bytes, &nibbles, sizeof(IW));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(levels[byte]);
  return load_ints(bytes);
#endif
}

// levels[lane] for lanes 0..15. `levels`: 16 of them.
QUIRE_INLINE FW look_up_floats(const float* levels, IW lanes) {
#if defined(__AVX512F__)
  return _mm512_maskz_permutexvar_ps(0xffff, (__m512i)lanes, _mm512_loadu_ps(levels));
#elif defined(__AVX2__)
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(levels), (__m256i)lanes);
  const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(levels + kLanes), (__m256i)lanes);
  return _mm256_blendv_ps(low, high, (__m256)(lanes << 28));
#else
  FW result;
  for (int i = 0; i < kWide; ++i) result[i] = levels[lanes[i]];
  return result;
#endif
}

// Signed numbers of 16 bits, two bytes a lane.
QUIRE_INLINE IW load_signed_word_lanes(const uint8_t* p) {
  typedef int16_t Words __attribute__((vector_size(2 * kWide)));
  Words words;
  std::memcpy(&words, p, sizeof(words));
  return __builtin_convertvector(words, IW);
}

// Four 8-bit numbers of a row of activations, in every lane.
QUIRE_INLINE IW broadcast_ints(const void* p) {
  int32_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return IW{} + bits;
}

// What a register holds now, so that the compiler neither puts off nor regroups the additions that made it: it would
// keep all the products of a block at once and spill them.
template <typename V>
QUIRE_INLINE V settled(V v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#elif defined(__AVX2__)
  asm("" : "+x"(v));
#endif
  return v;
}

// Sums of products of a column's bytes (0..255 of the weight, signed of the activation), collected in Sums: with AVX2
// pairs of 16 bits, which the formats' codes leave room for over 16 steps; else the 32 bits of a lane.
typedef IW Sums;
#if defined(__AVX512VNNI__)
QUIRE_INLINE Sums add_products(Sums sums, IW weights, IW activations) {
  return settled((IW)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, (__m512i)activations));
}
QUIRE_INLINE IW total(Sums sums) {
  return sums;
}
#elif defined(__AVX2__)
QUIRE_INLINE Sums add_products(Sums sums, IW weights, IW activations) {
  return settled((IW)_mm256_add_epi16((__m256i)sums, _mm256_maddubs_epi16((__m256i)weights, (__m256i)activations)));
}
template <int16_t kFactor>
QUIRE_INLINE IW scaled_total(Sums sums) {
  return (IW)_mm256_madd_epi16((__m256i)sums, _mm256_set1_epi16(kFactor));
}
QUIRE_INLINE IW total(Sums sums) {
  return scaled_total<1>(sums);
}
#else
QUIRE_INLINE Sums add_products(Sums sums, IW weights, IW activations) {
  for (int i = 0; i < 4; ++i) sums += ((weights >> (8 * i)) & 0xff) * ((activations << (24 - 8 * i)) >> 24);
  return sums;
}
QUIRE_INLINE IW total(Sums sums) {
  return sums;
}
#endif
// The same with four numbers of a row, read from memory. Where a vector is a whole tile nothing else wants them in a
// register, and the instruction repeats them itself: half as many are to be decoded.
QUIRE_INLINE Sums add_products_at(Sums sums, IW weights, const uint8_t* numbers) {
#if defined(__AVX512VNNI__)
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(weights), "m"(*reinterpret_cast<const int8_t(*)[4]>(numbers)));
  return sums;
#else
  return add_products(sums, weights, broadcast_ints(numbers));
#endif
}
// Whether Sums are pairs of 16 bits: what they start from is then, too.
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
constexpr bool kPairSums = true;
#else
constexpr bool kPairSums = false;
template <int16_t kFactor>
QUIRE_INLINE IW scaled_total(Sums sums) {
  return total(sums) * kFactor;
}
#endif

// Numbers of bfloat16 of which each lane has two: the second ones, the first ones.
QUIRE_INLINE FW upper_bfloat16s(IW pairs) {
  return (FW)(pairs & static_cast<int32_t>(0xffff0000u));
}
QUIRE_INLINE FW lower_bfloat16s(IW pairs) {
  return (FW)(pairs << 16);
}

// sums + products of pairs of bfloat16, the second pair first; kNative: by AVX-512 BF16, which takes subnormals for 0.
template <bool kNative>
QUIRE_INLINE FW add_bfloat16_products(FW sums, IW a, IW b) {
  if constexpr (kNative) {
#if defined(__AVX512F__)
    asm("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
    return sums;
#endif
  }
  return fma(lower_bfloat16s(a), lower_bfloat16s(b), fma(upper_bfloat16s(a), upper_bfloat16s(b), sums));
}

// sums + products of pairs of signed 16-bit numbers.
QUIRE_INLINE IW add_pair_products(IW sums, IW weights, IW activations) {
#if defined(__AVX512VNNI__)
  return settled((IW)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)weights, (__m512i)activations));
#elif defined(__AVX2__)
  return settled((IW)_mm256_add_epi32((__m256i)sums, _mm256_madd_epi16((__m256i)weights, (__m256i)activations)));
#else
  return sums + ((weights << 16) >> 16) * ((activations << 16) >> 16) + (weights >> 16) * (activations >> 16);
#endif
}

}  // namespace quire::ops::cpu::QUIRE_ISA
