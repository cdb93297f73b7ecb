// The gate of gpt-oss's experts, for gate g and up u:
//   g' = min(g, limit), u' = clamp(u, -limit, limit)
//   out = (u' + 1) * g' * sigmoid(alpha * g')
#pragma once

#include <cstdint>

namespace quire::ops {

struct ClampedSwigluArgs {
  const float* in = nullptr;  // [num_tokens, 2 * size]: gate, then up
  int64_t num_tokens = 0;
  int64_t size = 0;
  float alpha = 1.702f;
  float limit = 7.0f;
  float* out = nullptr;  // [num_tokens, size]
};

void check(const ClampedSwigluArgs& args);

}  // namespace quire::ops
