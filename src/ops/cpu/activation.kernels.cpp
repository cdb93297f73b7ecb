#include "ops/cpu/isa_kernels.h"
#include "ops/cpu/simd_math.h"

namespace quire::ops::cpu::QUIRE_ISA {
namespace {

// x / (1 + e^-y)
QUIRE_INLINE FW times_sigmoid(FW x, FW y) {
  return x / (exp(-y) + 1.0f);
}

// x Phi(x). Of the tail behind |x|, Q = e^(-x^2 / 2) g(|x| / sqrt 2) / 2, the factor g(z) = e^(z^2) erfc(z) is smooth:
// a polynomial in t = 1 / (1 + 0.4 z), least squares of the relative error over z <= 10 (7e-8).
QUIRE_INLINE FW gelu(FW x) {
  const FW magnitude = max(-x, x);
  const FW t = 1.0f / fma(magnitude, broadcast_wide(0.4f * 0.70710678f), broadcast_wide(1.0f));
  FW g = broadcast_wide(0.0419418034f);
  g = fma(g, t, broadcast_wide(-0.14358913f));
  g = fma(g, t, broadcast_wide(0.0905594424f));
  g = fma(g, t, broadcast_wide(0.0806835723f));
  g = fma(g, t, broadcast_wide(0.0846027009f));
  g = fma(g, t, broadcast_wide(0.191415136f));
  g = fma(g, t, broadcast_wide(0.202369641f));
  g = fma(g, t, broadcast_wide(0.226379133f));
  g = fma(g, t, broadcast_wide(0.225637768f));
  const FW tail = exp(magnitude * magnitude * -0.5f) * (g * t) * 0.5f;
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

// tanh u = 2 / (1 + e^-2u) - 1, so 0.5 x (1 + tanh u) = x / (1 + e^-2u).
QUIRE_INLINE FW gelu_tanh(FW x) {
  constexpr float kTwiceRootOfTwoOverPi = 1.59576912f;
  return times_sigmoid(x, fma(x * x, broadcast_wide(0.044715f), broadcast_wide(1.0f)) * x * kTwiceRootOfTwoOverPi);
}

template <typename F>
void apply(const F& function, const float* in, const float* up, int64_t size, float* out) {
  int64_t i = 0;
  for (; i + kWide <= size; i += kWide) {
    FW v = function(load_wide(in + i));
    if (up != nullptr) v *= load_wide(up + i);
    store_wide(out + i, v);
  }
  if (i == size) return;
  // The rest through the same vector function, so that a value's bits do not depend on its place.
  float last[kWide] = {};
  for (int64_t j = i; j < size; ++j) last[j - i] = in[j];
  const FW v = function(load_wide(last));
  for (int lane = 0; i < size; ++i, ++lane) out[i] = up == nullptr ? v[lane] : v[lane] * up[i];
}

}  // namespace

void activate(Activation function, const float* in, const float* up, int64_t size, float* out) {
  switch (function) {
    case Activation::kSilu:
      return apply([](FW x) { return times_sigmoid(x, x); }, in, up, size, out);
    case Activation::kGelu:
      return apply([](FW x) { return gelu(x); }, in, up, size, out);
    case Activation::kGeluTanh:
      return apply([](FW x) { return gelu_tanh(x); }, in, up, size, out);
    case Activation::kQuickGelu:
      return apply([](FW x) { return times_sigmoid(x, x * 1.702f); }, in, up, size, out);
    case Activation::kRelu:
      return apply([](FW x) { return max(FW{}, x); }, in, up, size, out);
    case Activation::kRelu2:
      return apply(
          [](FW x) {
            const FW positive = max(FW{}, x);
            return positive * positive;
          },
          in, up, size, out);
    case Activation::kSigmoid:
      return apply([](FW x) { return 1.0f / (exp(-x) + 1.0f); }, in, up, size, out);
    case Activation::kIdentity:
      return apply([](FW x) { return x; }, in, up, size, out);
  }
}

void add(float* hidden, const float* delta, float delta_scale, int64_t size) {
  int64_t i = 0;
  for (; i + kWide <= size; i += kWide)
    store_wide(hidden + i, fma(load_wide(delta + i), broadcast_wide(delta_scale), load_wide(hidden + i)));
  for (; i < size; ++i) hidden[i] = fma(delta[i], delta_scale, hidden[i]);
}

void xielu(float* values, float positive, float negative, float beta, float eps, int64_t size) {
  const auto applied = [&](FW x) {
    const FW above = x * x * positive;
    const FW below = (exp(min(x, broadcast_wide(eps))) - 1.0f - x) * negative;
    return (x > 0.0f ? above : below) + x * beta;
  };
  int64_t i = 0;
  for (; i + kWide <= size; i += kWide) store_wide(values + i, applied(load_wide(values + i)));
  const int64_t rest = size - i;
  if (rest > 0) store_some(values + i, applied(load_some(values + i, rest)), rest);
}

void scale(float* values, float factor, float soft_cap, float limit, int64_t size) {
  // NaN stays NaN in the comparisons.
  const FW most = broadcast_wide(limit);
  const auto scaled = [&](FW v) {
    v *= factor;
    if (soft_cap > 0) v = capped(v, soft_cap);
    if (limit > 0) {
      v = v > most ? most : v;
      v = v < -most ? -most : v;
    }
    return v;
  };
  int64_t i = 0;
  for (; i + kWide <= size; i += kWide) store_wide(values + i, scaled(load_wide(values + i)));
  if (i == size) return;
  float last[kWide] = {};
  for (int64_t j = i; j < size; ++j) last[j - i] = values[j];
  const FW v = scaled(load_wide(last));
  for (int lane = 0; i < size; ++i, ++lane) values[i] = v[lane];
}

}  // namespace quire::ops::cpu::QUIRE_ISA
