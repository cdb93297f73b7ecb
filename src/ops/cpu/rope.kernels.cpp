#include "ops/cpu/isa_kernels.h"
#include "ops/cpu/simd.h"

namespace quire::ops::cpu::QUIRE_ISA {
namespace {

void rotate_halves(float* a, float* b, int32_t half, const float* cosines, const float* sines) {
  int32_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const F8 x = load(a + i);
    const F8 y = load(b + i);
    const F8 c = load(cosines + i);
    const F8 s = load(sines + i);
    store(a + i, fma(x, c, -(y * s)));
    store(b + i, fma(x, s, y * c));
  }
  for (; i < half; ++i) {
    const float x = a[i];
    const float y = b[i];
    a[i] = fma(x, cosines[i], -(y * sines[i]));
    b[i] = fma(x, sines[i], y * cosines[i]);
  }
}

void rotate_neighbours(float* head, int32_t half, const float* cosines, const float* sines) {
  int32_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const F8 low = load(head + 2 * i);
    const F8 high = load(head + 2 * i + kLanes);
    const F8 x = __builtin_shuffle(low, high, I8{0, 2, 4, 6, 8, 10, 12, 14});
    const F8 y = __builtin_shuffle(low, high, I8{1, 3, 5, 7, 9, 11, 13, 15});
    const F8 c = load(cosines + i);
    const F8 s = load(sines + i);
    const F8 a = fma(x, c, -(y * s));
    const F8 b = fma(x, s, y * c);
    store(head + 2 * i, __builtin_shuffle(a, b, I8{0, 8, 1, 9, 2, 10, 3, 11}));
    store(head + 2 * i + kLanes, __builtin_shuffle(a, b, I8{4, 12, 5, 13, 6, 14, 7, 15}));
  }
  for (; i < half; ++i) {
    const float x = head[2 * i];
    const float y = head[2 * i + 1];
    head[2 * i] = fma(x, cosines[i], -(y * sines[i]));
    head[2 * i + 1] = fma(x, sines[i], y * cosines[i]);
  }
}

}  // namespace

void rope(float* head, int32_t rotary_dim, bool interleaved, const float* cosines, const float* sines) {
  const int32_t half = rotary_dim / 2;
  if (interleaved) {
    rotate_neighbours(head, half, cosines, sines);
  } else {
    rotate_halves(head, head + half, half, cosines, sines);
  }
}

}  // namespace quire::ops::cpu::QUIRE_ISA
