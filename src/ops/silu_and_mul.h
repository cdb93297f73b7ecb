// out[t][i] = silu(in[t][i]) * in[t][size + i], silu(x) = x / (1 + exp(-x)): the gate of a SwiGLU block (Shazeer,
// 2020).
#pragma once

#include <cstdint>

namespace quire::ops {

struct SiluAndMulArgs {
  const float* in = nullptr;  // [num_tokens, 2 * size]: gate, then up
  int64_t num_tokens = 0;
  int64_t size = 0;
  float* out = nullptr;  // [num_tokens, size]
};

void check(const SiluAndMulArgs& args);

}  // namespace quire::ops
