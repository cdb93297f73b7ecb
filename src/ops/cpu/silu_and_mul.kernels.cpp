#include "ops/cpu/isa_kernels.h"
#include "ops/cpu/simd.h"

namespace quire::ops::cpu::QUIRE_ISA {
namespace {

QUIRE_INLINE F8 silu_times(F8 gate, F8 up) {
  return gate / (exp(-gate) + 1.0f) * up;
}

}  // namespace

void silu_and_mul(const float* gate, const float* up, int64_t size, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store(out + i, silu_times(load(gate + i), load(up + i)));
  if (i == size) return;
  // The rest through the same vector function, so that a value's bits do not depend on its place.
  float last_gate[kLanes] = {};
  float last_up[kLanes] = {};
  for (int64_t j = i; j < size; ++j) {
    last_gate[j - i] = gate[j];
    last_up[j - i] = up[j];
  }
  const F8 last = silu_times(load(last_gate), load(last_up));
  for (int lane = 0; i < size; ++i, ++lane) out[i] = last[lane];
}

}  // namespace quire::ops::cpu::QUIRE_ISA
