// The formats of ops/kv_cache.h, eight numbers at a time: floats out of a cache, codes into it. Included by
// *.kernels.cpp alone, as simd.h is.
#pragma once

#include "ops/cpu/simd.h"

namespace quire::ops::cpu::QUIRE_ISA {

// Both FP8 formats are read as halves: E5M2 is the upper half of one; E4M3's bits fit into one whose exponent is 8
// too small (the biases are 7 and 15), and only its NaN, all ones, is not said by that.
QUIRE_INLINE F8 load_f8e5m2(const uint8_t* p) {
#if defined(__F16C__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), bytes));
#else
  return half_to_float(load_unsigned_bytes(p) << 8);
#endif
}
QUIRE_INLINE F8 load_f8e4m3(const uint8_t* p) {
#if defined(__F16C__)
  const __m128i bytes = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m128i magnitude = _mm_and_si128(bytes, _mm_set1_epi16(0x7f));
  const __m128i nan = _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7c00));
  const __m128i sign = _mm_and_si128(bytes, _mm_set1_epi16(static_cast<int16_t>(0x8000)));
  return _mm256_cvtph_ps(_mm_or_si128(_mm_or_si128(_mm_slli_epi16(magnitude, 7), nan), sign)) * 256.0f;
#else
  const I8 bytes = load_unsigned_bytes(p);
  const I8 magnitude = bytes & 0x7f;
  const I8 nan = (magnitude == 0x7f) & 0x7c00;
  return half_to_float((magnitude << 7) | nan | ((bytes & 0x80) << 8)) * 256.0f;
#endif
}
QUIRE_INLINE F8 load_int8(const uint8_t* p) {
  return to_float(load_signed_bytes(p));
}
QUIRE_INLINE F8 load_float(const uint8_t* p) {
  F8 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
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

template <typename Code>
QUIRE_INLINE void store_codes(I8 codes, Code* out) {
  typedef Code Codes __attribute__((vector_size(kLanes * sizeof(Code))));
  const Codes narrowed = __builtin_convertvector(codes, Codes);
  std::memcpy(out, &narrowed, sizeof(narrowed));
}
QUIRE_INLINE void store_half(F8 x, uint16_t* out) {
  store_codes(narrow<10, 15, 0x8000, 0x7c00, 0x7e00>(x), out);
}
QUIRE_INLINE void store_bfloat16(F8 x, uint16_t* out) {
  store_codes(narrow<7, 127, 0x8000, 0x7f80, 0x7fc0>(x), out);
}
QUIRE_INLINE void store_f8e4m3(F8 x, uint8_t* out) {
  store_codes(narrow<3, 7, 0x80, 0x7e, 0x7f>(x), out);
}
QUIRE_INLINE void store_f8e5m2(F8 x, uint8_t* out) {
  store_codes(narrow<2, 15, 0x80, 0x7b, 0x7e>(x), out);
}

}  // namespace quire::ops::cpu::QUIRE_ISA
