// bfloat16, for the emulated device.
#pragma once

#include <cuda_runtime.h>

struct __nv_bfloat16_raw {
  unsigned short x;
};

struct alignas(2) __nv_bfloat16 {
  unsigned short bits;
  __nv_bfloat16() = default;
  inline __nv_bfloat16(float value);
  inline __nv_bfloat16(__nv_bfloat16_raw raw) : bits(raw.x) {}
  inline operator float() const;
};
using nv_bfloat16 = __nv_bfloat16;

struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
using nv_bfloat162 = __nv_bfloat162;

inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) {
  return value.bits;
}
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  return __nv_bfloat16(__nv_bfloat16_raw{bits});
}

inline float __bfloat162float(__nv_bfloat16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}

inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  const unsigned bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return __ushort_as_bfloat16(0x7fff);
  return __ushort_as_bfloat16(static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16));
}

inline __nv_bfloat16::__nv_bfloat16(float value) : bits(__float2bfloat16_rn(value).bits) {}
inline __nv_bfloat16::operator float() const {
  return __bfloat162float(*this);
}

inline __nv_bfloat16 __float2bfloat16(float value) {
  return __float2bfloat16_rn(value);
}
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) {
  return {x, y};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 value) {
  return __floats2bfloat162_rn(value.x, value.y);
}
inline float2 __bfloat1622float2(__nv_bfloat162 value) {
  return {__bfloat162float(value.x), __bfloat162float(value.y)};
}
inline float __low2float(__nv_bfloat162 value) {
  return __bfloat162float(value.x);
}
inline float __high2float(__nv_bfloat162 value) {
  return __bfloat162float(value.y);
}
