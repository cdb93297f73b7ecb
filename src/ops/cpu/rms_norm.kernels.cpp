#include "ops/cpu/isa_kernels.h"
#include "ops/cpu/simd.h"

namespace quire::ops::cpu::QUIRE_ISA {

void rms_norm(float* hidden, const float* delta, float delta_scale, const float* weight, float eps, int64_t size,
              float* out) {
  // Four sums in flight; which one a value joins depends on its index alone.
  constexpr int kSums = 4;
  F8 squares[kSums] = {};
  int64_t i = 0;
  for (; i + kSums * kLanes <= size; i += kSums * kLanes) {
    for (int j = 0; j < kSums; ++j) {
      F8 v = load(hidden + i + j * kLanes);
      if (delta != nullptr) {
        v = fma(load(delta + i + j * kLanes), broadcast(delta_scale), v);
        store(hidden + i + j * kLanes, v);
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
  for (i = 0; i + kLanes <= size; i += kLanes) store(out + i, load(hidden + i) * scale * load(weight + i));
  for (; i < size; ++i) out[i] = hidden[i] * scale * weight[i];
}

}  // namespace quire::ops::cpu::QUIRE_ISA
