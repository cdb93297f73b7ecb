// The formats of ops/kv_cache.h: floats out of a cache, kWide numbers at a time, codes into it, eight at a time.
// Included by *.kernels.cpp alone, as simd.h is.
#pragma once

#include "ops/cpu/simd_wide.h"
#include "tensor/dtype.h"

namespace quire::ops::cpu::QUIRE_ISA {

// Neighbours of a row, and the next ones.
struct Pair {
  FW first;
  FW second;
};

// Both FP8 formats are read as halves: E5M2 is the upper half of one; E4M3's bits fit into one whose exponent is 8
// too small (the biases are 7 and 15), and only its NaN, all ones, is not said by that: it gets the exponent's top bit.
QUIRE_INLINE F8 load_f8e5m2(const uint8_t* p) {
#if defined(__F16C__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), bytes));
#else
  return half_to_float(load_unsigned_bytes(p) << 8);
#endif
}
// Values are the floats times this: a power of two.
constexpr float kF8E4M3Factor = 256.0f;
QUIRE_INLINE F8 load_f8e4m3(const uint8_t* p) {
#if defined(__F16C__)
  const __m128i wide = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))), 7);
  const __m128i all_ones = _mm_set1_epi16(0x3f80);
  const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(wide, all_ones), all_ones);
  const __m128i half = _mm_and_si128(wide, _mm_set1_epi16(static_cast<int16_t>(0xbf80)));
  return _mm256_cvtph_ps(_mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x4000))));
#else
  const I8 bytes = load_unsigned_bytes(p);
  const I8 magnitude = bytes & 0x7f;
  const I8 nan = (magnitude == 0x7f) & 0x4000;
  return half_to_float((magnitude << 7) | nan | ((bytes & 0x80) << 8));
#endif
}

// kWide codes of 16 bits, which are floats' upper halves.
QUIRE_INLINE FW load_bfloat16s(const uint8_t* p) {
#if defined(__AVX512F__)
  const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return (FW)((IW)_mm512_maskz_cvtepu16_epi32(0xffff, codes) << 16);
#elif defined(__AVX2__)
  return load_bfloat16(p);
#else
  return joined(load_bfloat16(p), load_bfloat16(p + 2 * kLanes));
#endif
}
QUIRE_INLINE FW load_int8s(const uint8_t* p) {
  return ints_to_floats(load_signed_byte_lanes(p));
}
QUIRE_INLINE FW load_floats(const uint8_t* p) {
  FW v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

#if defined(__AVX512F__)
QUIRE_INLINE FW load_f8e5m2s(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8));
}
#elif defined(__AVX2__)
QUIRE_INLINE FW load_f8e5m2s(const uint8_t* p) {
  return load_f8e5m2(p);
}
QUIRE_INLINE Pair load_f8e5m2_pair(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), bytes)),
          _mm256_cvtph_ps(_mm_unpackhi_epi8(_mm_setzero_si128(), bytes))};
}
#else
QUIRE_INLINE FW load_f8e5m2s(const uint8_t* p) {
  return joined(load_f8e5m2(p), load_f8e5m2(p + kLanes));
}
#endif

#if defined(__AVX2__)
// Sixteen codes as halves.
QUIRE_INLINE __m256i f8e4m3_halves(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
  const __m256i all_ones = _mm256_set1_epi16(0x3f80);
  const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(wide, all_ones), all_ones);
  return _mm256_or_si256(_mm256_and_si256(wide, _mm256_set1_epi16(static_cast<int16_t>(0xbf80))),
                         _mm256_and_si256(nan, _mm256_set1_epi16(0x4000)));
}
#endif
// Unlike load_f8e4m3s() it keeps NaN.
#if defined(__AVX512F__)
QUIRE_INLINE FW load_cached_f8e4m3s(const uint8_t* p) {
  return _mm512_maskz_cvtph_ps(0xffff, f8e4m3_halves(p));
}
#elif defined(__AVX2__)
QUIRE_INLINE FW load_cached_f8e4m3s(const uint8_t* p) {
  return load_f8e4m3(p);
}
QUIRE_INLINE Pair load_f8e4m3_pair(const uint8_t* p) {
  const __m256i halves = f8e4m3_halves(p);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}
#else
QUIRE_INLINE FW load_cached_f8e4m3s(const uint8_t* p) {
  return joined(load_f8e4m3(p), load_f8e4m3(p + kLanes));
}
#endif

// A cache's format: bytes of a code, kWide codes to floats, twice as many to floats.
template <int kCodeBytes, FW (*kLoad)(const uint8_t*)>
struct Format {
  static constexpr int64_t kBytes = kCodeBytes;
  static constexpr bool kLoadsPairs = false;
  static inline __attribute__((always_inline)) FW load(const uint8_t* p) { return kLoad(p); }
  static inline __attribute__((always_inline)) Pair load_pair(const uint8_t* p) {
    return {kLoad(p), kLoad(p + kWide * kBytes)};
  }
};
// One of bytes, which takes sixteen codes for little more than eight.
#if QUIRE_WIDE_LANES == 8
template <FW (*kLoad)(const uint8_t*), Pair (*kLoadPair)(const uint8_t*)>
struct PairFormat {
  static constexpr int64_t kBytes = 1;
  static constexpr bool kLoadsPairs = true;
  static inline __attribute__((always_inline)) FW load(const uint8_t* p) { return kLoad(p); }
  static inline __attribute__((always_inline)) Pair load_pair(const uint8_t* p) { return kLoadPair(p); }
};
using CachedE4M3Format = PairFormat<load_cached_f8e4m3s, load_f8e4m3_pair>;
using CachedE5M2Format = PairFormat<load_f8e5m2s, load_f8e5m2_pair>;
#else
using CachedE4M3Format = Format<1, load_cached_f8e4m3s>;
using CachedE5M2Format = Format<1, load_f8e5m2s>;
#endif
using FloatFormat = Format<4, load_floats>;

// visit(Format<...>{}) of a format of is_kv_format(). The floats of I8 are the codes: a token's scale is not in them.
template <typename Visit>
QUIRE_INLINE void with_format(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kF16:
      return visit(Format<2, load_halves>{});
    case DType::kBF16:
      return visit(Format<2, load_bfloat16s>{});
    case DType::kF8E4M3:
      return visit(CachedE4M3Format{});
    case DType::kF8E5M2:
      return visit(CachedE5M2Format{});
    case DType::kI8:
      return visit(Format<1, load_int8s>{});
    default:
      return visit(FloatFormat{});
  }
}

// `count` codes to floats; the last ones through a padded copy.
template <typename Format>
QUIRE_INLINE void widen_run(const uint8_t* in, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + kWide <= count; i += kWide) store_wide(out + i, Format::load(in + i * Format::kBytes));
  if (i >= count) return;
  uint8_t padded[kWide * Format::kBytes] = {};
  for (int64_t byte = 0; byte < (count - i) * Format::kBytes; ++byte) padded[byte] = in[i * Format::kBytes + byte];
  const FW last = Format::load(padded);
  for (int lane = 0; i < count; ++i, ++lane) out[i] = last[lane];
}

// Codes of a float with kFractionBits and kBias: nearest, ties to even; kLargest for what is too large; kSign is the
// sign's bit. A number under the least normal one is rounded by adding the float whose last bit is worth a unit.
template <int kFractionBits, int kBias, int kSign, int kLargest, int kNan>
QUIRE_INLINE I8 narrow(F8 x) {
  constexpr int kShift = 23 - kFractionBits;
  constexpr int kInfinity = 0x7f800000;
  const I8 bits = (I8)x;
  const I8 magnitude = bits & 0x7fffffff;
  const I8 bounded = magnitude < kInfinity ? magnitude : I8{} + kInfinity;
  const I8 rounded = bounded + ((1 << (kShift - 1)) - 1) + ((bounded >> kShift) & 1);
  I8 code = (rounded >> kShift) - ((127 - kBias) << kFractionBits);
  if constexpr (kBias != 127) {
    const I8 carrier = I8{} + ((127 + 24 - kBias - kFractionBits) << 23);
    const I8 small = (I8)((F8)bounded + (F8)carrier) - carrier;
    code = bounded < ((128 - kBias) << 23) ? small : code;
  }
  code = code < kLargest ? code : I8{} + kLargest;
  code = magnitude > kInfinity ? I8{} + kNan : code;
  return code | (bits < 0 ? I8{} + kSign : I8{});
}

QUIRE_INLINE void store_half(F8 x, uint16_t* out) {
#if defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#else
  store_narrowed(narrow<10, 15, 0x8000, 0x7c00, 0x7e00>(x), out);
#endif
}
QUIRE_INLINE void store_bfloat16(F8 x, uint16_t* out) {
  store_narrowed(narrow<7, 127, 0x8000, 0x7f80, 0x7fc0>(x), out);
}
QUIRE_INLINE void store_f8e4m3(F8 x, uint8_t* out) {
  store_narrowed(narrow<3, 7, 0x80, 0x7e, 0x7f>(x), out);
}
QUIRE_INLINE void store_f8e5m2(F8 x, uint8_t* out) {
  store_narrowed(narrow<2, 15, 0x80, 0x7b, 0x7e>(x), out);
}

}  // namespace quire::ops::cpu::QUIRE_ISA
