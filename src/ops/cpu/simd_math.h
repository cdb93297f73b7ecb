// Functions of kWide floats. Included by *.kernels.cpp alone, as simd.h is.
#pragma once

#include "ops/cpu/simd_wide.h"

namespace quire::ops::cpu::QUIRE_ISA {

// e^x = e^r 2^n: x = n ln 2 + r with n whole and |r| <= ln(2)/2 (Cody and Waite: ln 2 in two parts keeps r exact);
// e^r = 1 + r + r^2 p(r), p minimax of degree 4 (relative error 4e-9).
struct Power {
  FW fraction;  // e^r
  IW shifted;   // n + kShifted
};
constexpr int32_t kShifted = 0x4b400000;  // the bits of 1.5 * 2^23, whose last bit is worth 1
QUIRE_INLINE Power power_of_e(FW x) {
  const FW shifter = broadcast_wide(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  const FW shifted = fma(x, broadcast_wide(1.44269504f), shifter);
  const FW n = shifted - shifter;
  FW r = fma(n, broadcast_wide(-0.693359375f), x);
  r = fma(n, broadcast_wide(2.12194440e-4f), r);
  FW p = broadcast_wide(1.38131445e-3f);
  p = fma(p, r, broadcast_wide(8.369418836e-3f));
  p = fma(p, r, broadcast_wide(4.166845679e-2f));
  p = fma(p, r, broadcast_wide(1.666651479e-1f));
  p = fma(p, r, broadcast_wide(4.999999305e-1f));
  return {fma(p * r, r, r) + 1.0f, (IW)shifted};
}

// e^x within 2 ulp over the range of floats; 0 below it, infinity above; NaN stays. 2^n in two factors reaches the
// denormals.
QUIRE_INLINE FW exp(FW x) {
  x = max(broadcast_wide(-104.0f), min(broadcast_wide(89.0f), x));
  const Power power = power_of_e(x);
  const IW whole = power.shifted - kShifted;
  const IW half = whole >> 1;
  return power.fraction * (FW)((half + 127) << 23) * (FW)((whole - half + 127) << 23);
}

// tanh x within 4e-7 of itself. Near 0, where the difference of e^2x and 1 has few digits, an odd polynomial: least
// squares of the relative error over |x| <= 0.625 (5e-9).
QUIRE_INLINE FW tanh(FW x) {
  const FW square = x * x;
  FW p = broadcast_wide(-0.00570404252f);
  p = fma(p, square, broadcast_wide(0.0206378615f));
  p = fma(p, square, broadcast_wide(-0.0537391565f));
  p = fma(p, square, broadcast_wide(0.133314318f));
  p = fma(p, square, broadcast_wide(-0.333332813f));
  const FW near = fma(p * square, x, x);
  const FW far = 1.0f - 2.0f / (exp(x + x) + 1.0f);
  return square < 0.625f * 0.625f ? near : far;
}

// Never beyond the cap, and x itself where that is far away.
QUIRE_INLINE FW capped(FW x, float cap) {
  return tanh(x / cap) * cap;
}

}  // namespace quire::ops::cpu::QUIRE_ISA
