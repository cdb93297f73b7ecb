// Layer norm (Ba et al., 2016), with the residual add that comes before it:
//   hidden[t] += delta[t]  (when delta is given; hidden keeps the sum)
//   out[t] = (hidden[t] - mean(hidden[t])) / sqrt(variance(hidden[t]) + eps) * weight + bias
#pragma once

#include <cstdint>

namespace quire::ops {

struct LayerNormArgs {
  float* hidden = nullptr;        // [num_tokens, size]; written only when delta is given
  const float* delta = nullptr;   // [num_tokens, size] or nullptr
  const float* weight = nullptr;  // [size] or nullptr: ones
  const float* bias = nullptr;    // [size] or nullptr: zeros
  float eps = 1e-5f;
  int64_t num_tokens = 0;
  int64_t size = 0;
  float* out = nullptr;  // [num_tokens, size]; may be hidden when delta is nullptr
};

void check(const LayerNormArgs& args);

}  // namespace quire::ops
