#include "ops/cpu/isa_kernels.h"
#include "ops/cpu/simd_wide.h"

namespace quire::ops::cpu::QUIRE_ISA {
namespace {

// Sum of value(i) over [0, size), value giving a vector or a float; which partial sum a value joins depends on its
// index alone.
template <typename Vector, typename Single>
QUIRE_INLINE float sum_of(int64_t size, const Vector& vector, const Single& single) {
  FW sums[2] = {};
  int64_t i = 0;
  for (; i + 2 * kWide <= size; i += 2 * kWide) {
    sums[0] += vector(i);
    sums[1] += vector(i + kWide);
  }
  float rest = 0;
  for (; i < size; ++i) rest += single(i);
  return sum(sums[0] + sums[1]) + rest;
}

}  // namespace

// Two passes: the variance is the mean square of what is left when the mean is gone, not a difference of large numbers.
void layer_norm(float* hidden, const float* delta, const float* weight, const float* bias, float eps, int64_t size,
                float* out) {
  if (delta != nullptr) add(hidden, delta, 1.0f, size);
  const auto count = static_cast<float>(size);
  const float mean = sum_of(
                         size, [&](int64_t i) { return load_wide(hidden + i); }, [&](int64_t i) { return hidden[i]; }) /
                     count;
  const float variance = sum_of(
                             size,
                             [&](int64_t i) {
                               const FW v = load_wide(hidden + i) - mean;
                               return v * v;
                             },
                             [&](int64_t i) { return (hidden[i] - mean) * (hidden[i] - mean); }) /
                         count;
  const float scale = 1.0f / __builtin_sqrtf(variance + eps);
  int64_t i = 0;
  for (; i + kWide <= size; i += kWide) {
    FW v = (load_wide(hidden + i) - mean) * scale;
    if (weight != nullptr) v *= load_wide(weight + i);
    if (bias != nullptr) v += load_wide(bias + i);
    store_wide(out + i, v);
  }
  for (; i < size; ++i) {
    float v = (hidden[i] - mean) * scale;
    if (weight != nullptr) v *= weight[i];
    if (bias != nullptr) v += bias[i];
    out[i] = v;
  }
}

}  // namespace quire::ops::cpu::QUIRE_ISA
