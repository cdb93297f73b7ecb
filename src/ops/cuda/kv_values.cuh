// Numbers of the KV cache in each format: how a kernel rounds them and reads them back (ops/kv_cache.h).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "ops/cuda/float8.cuh"
#include "tensor/dtype.h"

namespace quire::ops::cuda {

// The code, sign apart, of |x| in a float of fewer bits: (1 + f / 2^kFractionBits) * 2^(e - kBias), denormal where e is
// 0; to nearest even, not above kLargest. Whole numbers all the way: no setting of the compiler's can change a bit.
template <int kFractionBits, int kBias, unsigned kLargest, unsigned kNan>
__device__ inline unsigned rounded_magnitude(float x) {
  const unsigned magnitude = __float_as_uint(x) & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return kNan;
  constexpr int kShift = 23 - kFractionBits;
  constexpr unsigned kLowestNormal = static_cast<unsigned>(128 - kBias) << 23;
  if (magnitude >= kLowestNormal) {
    const unsigned rounded = (magnitude + (1u << (kShift - 1)) - 1 + ((magnitude >> kShift) & 1u)) >> kShift;
    const unsigned code = rounded - (static_cast<unsigned>(127 - kBias) << kFractionBits);
    return code < kLargest ? code : kLargest;
  }
  // Denormal: its unit is 2^shift of the float's own.
  const unsigned exponent = magnitude >> 23;
  const unsigned fraction = exponent == 0 ? magnitude : (magnitude & 0x7fffffu) | 0x800000u;
  const int shift = kShift + (128 - kBias) - static_cast<int>(exponent == 0 ? 1u : exponent);
  if (shift > 24) return 0;
  return (fraction + (1u << (shift - 1)) - 1 + ((fraction >> shift) & 1u)) >> shift;
}

// A format's code of a number, the number of a code, and number `index` of 16 bytes of codes. Those of I8 are without
// their scale.
template <DType kFormat>
struct KvFormat;

template <>
struct KvFormat<DType::kF32> {
  using Code = uint32_t;
  static __device__ Code code(float x) { return __float_as_uint(x); }
  static __device__ float number(Code code) { return __uint_as_float(code); }
};

template <>
struct KvFormat<DType::kF16> {
  using Code = uint16_t;
  static __device__ Code code(float x) {
    return static_cast<Code>(__float_as_uint(x) >> 31 << 15 | rounded_magnitude<10, 15, 0x7c00, 0x7e00>(x));
  }
  static __device__ float number(Code code) { return __half2float(__ushort_as_half(code)); }
};

template <>
struct KvFormat<DType::kBF16> {
  using Code = uint16_t;
  static __device__ Code code(float x) {
    return static_cast<Code>(__float_as_uint(x) >> 31 << 15 | rounded_magnitude<7, 127, 0x7f80, 0x7fc0>(x));
  }
  static __device__ float number(Code code) { return __uint_as_float(static_cast<unsigned>(code) << 16); }
};

template <>
struct KvFormat<DType::kF8E4M3> {
  using Code = uint8_t;
  static __device__ Code code(float x) {
    return static_cast<Code>(__float_as_uint(x) >> 31 << 7 | rounded_magnitude<3, 7, 0x7e, 0x7f>(x));
  }
  static __device__ float number(Code code) { return lower_half(halves_of_float8(code)); }
};

template <>
struct KvFormat<DType::kF8E5M2> {
  using Code = uint8_t;
  static __device__ Code code(float x) {
    return static_cast<Code>(__float_as_uint(x) >> 31 << 7 | rounded_magnitude<2, 15, 0x7b, 0x7e>(x));
  }
  static __device__ float number(Code code) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(code << 8)));
  }
};

template <>
struct KvFormat<DType::kI8> {
  using Code = int8_t;
  static __device__ float number(Code code) { return static_cast<float>(code); }
};

// Two numbers as codes of F8_E4M3, the first in the lower byte: to nearest even, not above 448. One instruction where a
// card has it; NaN loses its sign there.
__device__ inline unsigned float8_codes(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned short codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  return codes;
#else
  using Float8 = KvFormat<DType::kF8E4M3>;
  return unsigned{Float8::code(first)} | unsigned{Float8::code(second)} << 8;
#endif
}

// Calls body(format) for the format of a cache.
template <typename Body>
__host__ __device__ void with_kv_format(DType dtype, Body body) {
  switch (dtype) {
    case DType::kF32:
      return body(std::integral_constant<DType, DType::kF32>{});
    case DType::kF16:
      return body(std::integral_constant<DType, DType::kF16>{});
    case DType::kBF16:
      return body(std::integral_constant<DType, DType::kBF16>{});
    case DType::kF8E4M3:
      return body(std::integral_constant<DType, DType::kF8E4M3>{});
    case DType::kF8E5M2:
      return body(std::integral_constant<DType, DType::kF8E5M2>{});
    default:
      return body(std::integral_constant<DType, DType::kI8>{});
  }
}

// Numbers in 16 bytes.
template <DType kFormat>
inline constexpr int kNumbersOfVector = 16 / static_cast<int>(sizeof(typename KvFormat<kFormat>::Code));

template <DType kFormat>
__device__ inline float number_of(const uint4& vector, int index) {
  using Code = typename KvFormat<kFormat>::Code;
  constexpr int kPerWord = 4 / static_cast<int>(sizeof(Code));
  const int word = index / kPerWord;
  const unsigned bits = word == 0 ? vector.x : word == 1 ? vector.y : word == 2 ? vector.z : vector.w;
  if constexpr (kFormat == DType::kF8E4M3) {  // neighbours become halves together, which the compiler sees
    const unsigned halves = halves_of_float8(index % 4 < 2 ? bits & 0xffffu : bits >> 16);
    return index % 2 == 0 ? lower_half(halves) : upper_half(halves);
  }
  return KvFormat<kFormat>::number(
      static_cast<Code>(bits >> (8 * static_cast<int>(sizeof(Code)) * (index % kPerWord))));
}

// The scales of I8 lie at any address.
__device__ inline float load_scale(const uint8_t* at) {
  const unsigned bits = at[0] | static_cast<unsigned>(at[1]) << 8 | static_cast<unsigned>(at[2]) << 16 |
                        static_cast<unsigned>(at[3]) << 24;
  return __uint_as_float(bits);
}
__device__ inline void store_scale(uint8_t* at, float scale) {
  const unsigned bits = __float_as_uint(scale);
  for (int i = 0; i < 4; ++i) at[i] = static_cast<uint8_t>(bits >> (8 * i));
}

}  // namespace quire::ops::cuda
