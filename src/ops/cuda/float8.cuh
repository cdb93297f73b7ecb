// 8-bit floats as halves, which hold each of them exactly.
#pragma once

#include <cuda_fp16.h>

namespace quire::ops::cuda {

// Two codes of F8_E4M3 as two halves, the lower byte's in the lower 16 bits. NaN is NaN, without its sign. One
// instruction where a card has it (8.9 and later).
__device__ inline unsigned halves_of_float8(unsigned codes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(codes)));
  return halves;
#else
  unsigned halves = 0;
  for (unsigned shift = 0; shift < 16; shift += 8) {
    const unsigned code = codes >> shift & 0xffu;
    // As a half the code is 1/256 of its value, denormals included; but NaN, which a half of these bits is not.
    const float part =
        __half2float(__ushort_as_half(static_cast<unsigned short>((code & 0x80) << 8 | (code & 0x7f) << 7)));
    const unsigned half = (code & 0x7f) == 0x7f ? 0x7fffu : __half_as_ushort(__float2half_rn(part * 256.0f));
    halves |= half << (2 * shift);
  }
  return halves;
#endif
}
// Four codes: those of the lower 16 bits, and of the upper. To take a register apart costs no instruction of its own.
__device__ inline void halves_of_float8(unsigned codes, unsigned& lower, unsigned& upper) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.rn.f16x2.e4m3x2 %0, low;\n"
      "cvt.rn.f16x2.e4m3x2 %1, high;\n}"
      : "=r"(lower), "=r"(upper)
      : "r"(codes));
#else
  lower = halves_of_float8(codes & 0xffffu);
  upper = halves_of_float8(codes >> 16);
#endif
}
__device__ inline float lower_half(unsigned halves) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(halves & 0xffffu)));
}
__device__ inline float upper_half(unsigned halves) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(halves >> 16)));
}

}  // namespace quire::ops::cuda
