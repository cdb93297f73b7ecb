// binary16, for the emulated device.
#pragma once

#include <cuda_runtime.h>

struct __half_raw {
  unsigned short x;
};

struct alignas(2) __half {
  unsigned short bits;
  __half() = default;
  inline __half(float value);
  inline __half(__half_raw raw) : bits(raw.x) {}
  inline operator float() const;
};
using half = __half;

struct alignas(4) __half2 {
  __half x, y;
};
using half2 = __half2;

inline unsigned short __half_as_ushort(__half value) {
  return value.bits;
}
inline __half __ushort_as_half(unsigned short bits) {
  return __half(__half_raw{bits});
}

inline float __half2float(__half value) {
  const unsigned magnitude = value.bits & 0x7fffu;
  // Exponents are rebased by a product, which denormals survive.
  unsigned bits = __float_as_uint(__uint_as_float(magnitude << 13) * 0x1p112f);
  if (magnitude >= 0x7c00u) bits = 0x7f800000u | (magnitude << 13);
  return __uint_as_float(bits | (value.bits & 0x8000u) << 16);
}

inline __half __float2half_rn(float value) {
  const unsigned bits = __float_as_uint(value);
  const unsigned magnitude = bits & 0x7fffffffu;
  unsigned code;
  if (magnitude > 0x7f800000u) return __ushort_as_half(0x7fff);
  if (magnitude >= 0x477ff000u) {
    code = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    code =
        __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;  // a half's smallest step is 0.5's last bit
  } else {
    code = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  }
  return __ushort_as_half(static_cast<unsigned short>(code | ((bits >> 16) & 0x8000u)));
}

inline __half::__half(float value) : bits(__float2half_rn(value).bits) {}
inline __half::operator float() const {
  return __half2float(*this);
}

inline __half __float2half(float value) {
  return __float2half_rn(value);
}
inline __half2 __halves2half2(__half x, __half y) {
  return {x, y};
}
inline __half2 make_half2(__half x, __half y) {
  return {x, y};
}
inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}
inline __half2 __float22half2_rn(float2 value) {
  return __floats2half2_rn(value.x, value.y);
}
inline float2 __half22float2(__half2 value) {
  return {__half2float(value.x), __half2float(value.y)};
}
inline float __low2float(__half2 value) {
  return __half2float(value.x);
}
inline float __high2float(__half2 value) {
  return __half2float(value.y);
}
inline __half __low2half(__half2 value) {
  return value.x;
}
inline __half __high2half(__half2 value) {
  return value.y;
}

// Sums and products of pairs, rounded once.
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  const auto one = [](__half x, __half y, __half z) {
    return __half(static_cast<float>(double{float(x)} * double{float(y)} + double{float(z)}));
  };
  return {one(a.x, b.x, c.x), one(a.y, b.y, c.y)};
}
inline __half2 __hadd2(__half2 a, __half2 b) {
  return {__half(float(a.x) + float(b.x)), __half(float(a.y) + float(b.y))};
}
inline __half2 __hmul2(__half2 a, __half2 b) {
  return {__half(float(a.x) * float(b.x)), __half(float(a.y) * float(b.y))};
}
