// Activations of one number.
#pragma once

#include <cuda_runtime.h>

#include "types/activation.h"

namespace quire::ops::cuda {

// x Phi(x). Far below zero the tail of Phi has an error of z^2 times that of z = -x / sqrt(2): what z loses to rounding
// is carried in `rest`, and brought in with the tail's slope.
__device__ inline float gelu(float x) {
  constexpr float kHigh = 0.70710678118654752440f;
  constexpr float kLow = static_cast<float>(0.70710678118654752440 - static_cast<double>(kHigh));
  constexpr float kTwoBySqrtPi = 1.12837916709551257390f;
  const float z = -x * kHigh;
  const float rest = fmaf(-x, kHigh, -z) - x * kLow;
  const float tail = erfcf(z);
  // Where there is no tail left, or nothing else, z * z may be infinite and `rest` NaN.
  if (!(fabsf(z) < 9.0f)) return 0.5f * x * tail;
  return 0.5f * x * (tail - kTwoBySqrtPi * expf(-z * z) * rest);
}

template <Activation kFunction>
__device__ float activated(float x) {
  if constexpr (kFunction == Activation::kSilu) {
    return x / (1.0f + expf(-x));
  } else if constexpr (kFunction == Activation::kGelu) {
    return gelu(x);
  } else if constexpr (kFunction == Activation::kGeluTanh) {
    // (1 + tanh(u)) / 2 = sigmoid(2 u), which loses nothing where tanh(u) is near -1.
    constexpr float kTwoSqrtTwoByPi = 1.59576912160573071176f;
    return x / (1.0f + expf(-kTwoSqrtTwoByPi * fmaf(0.044715f * x * x, x, x)));
  } else if constexpr (kFunction == Activation::kQuickGelu) {
    return x / (1.0f + expf(-1.702f * x));
  } else if constexpr (kFunction == Activation::kRelu2) {
    return x < 0 ? 0.0f : x * x;
  } else if constexpr (kFunction == Activation::kSigmoid) {
    return 1.0f / (1.0f + expf(-x));
  } else if constexpr (kFunction == Activation::kIdentity) {
    return x;
  } else {
    return x < 0 ? 0.0f : x;
  }
}

__device__ inline float activated(Activation function, float x) {
  switch (function) {
    case Activation::kSilu:
      return activated<Activation::kSilu>(x);
    case Activation::kGelu:
      return activated<Activation::kGelu>(x);
    case Activation::kGeluTanh:
      return activated<Activation::kGeluTanh>(x);
    case Activation::kQuickGelu:
      return activated<Activation::kQuickGelu>(x);
    case Activation::kRelu2:
      return activated<Activation::kRelu2>(x);
    case Activation::kSigmoid:
      return activated<Activation::kSigmoid>(x);
    case Activation::kIdentity:
      return activated<Activation::kIdentity>(x);
    default:
      return activated<Activation::kRelu>(x);
  }
}

}  // namespace quire::ops::cuda
