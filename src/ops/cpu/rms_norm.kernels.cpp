#include "ops/cpu/isa_kernels.h"
#include "ops/cpu/simd_wide.h"

namespace quire::ops::cpu::QUIRE_ISA {

void rms_norm(float* hidden, const float* delta, float delta_scale, const float* weight, float eps, int64_t size,
              float* out) {
  // Four sums in flight; which one a value joins depends on its index alone.
  constexpr int kSums = 4;
  FW squares[kSums] = {};
  int64_t i = 0;
  for (; i + kSums * kWide <= size; i += kSums * kWide) {
    for (int j = 0; j < kSums; ++j) {
      FW v = load_wide(hidden + i + j * kWide);
      if (delta != nullptr) {
        v = fma(load_wide(delta + i + j * kWide), broadcast_wide(delta_scale), v);
        store_wide(hidden + i + j * kWide, v);
      }
      squares[j] = fma(v, v, squares[j]);
    }
  }
  float rest = 0;
  for (; i < size; ++i) {
    if (delta != nullptr) hidden[i] = fma(delta[i], delta_scale, hidden[i]);
    rest = fma(hidden[i], hidden[i], rest);
  }
  const float total = sum((squares[0] + squares[1]) + (squares[2] + squares[3])) + rest;
  const float scale = 1.0f / __builtin_sqrtf(total / static_cast<float>(size) + eps);
  for (i = 0; i + kWide <= size; i += kWide) store_wide(out + i, load_wide(hidden + i) * scale * load_wide(weight + i));
  for (; i < size; ++i) out[i] = hidden[i] * scale * weight[i];
}

}  // namespace quire::ops::cpu::QUIRE_ISA
