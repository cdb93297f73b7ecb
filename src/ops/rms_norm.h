// Root mean square norm (Zhang and Sennrich, 2019), with the residual add that comes before it:
//   hidden[t] += delta[t]  (when delta is given; hidden keeps the sum)
//   out[t] = hidden[t] / sqrt(mean(hidden[t]^2) + eps) * weight
#pragma once

#include <cstdint>

namespace quire::ops {

struct RmsNormArgs {
  float* hidden = nullptr;        // [num_tokens, size]; written only when delta is given
  const float* delta = nullptr;   // [num_tokens, size] or nullptr
  const float* weight = nullptr;  // [size]
  float eps = 1e-5f;
  int64_t num_tokens = 0;
  int64_t size = 0;
  float* out = nullptr;  // [num_tokens, size]; may be hidden when delta is nullptr
};

void check(const RmsNormArgs& args);

}  // namespace quire::ops
