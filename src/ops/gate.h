// values[t][i] *= f(gates[t][i]), f one of types/activation.h: what decides how much of a block's numbers goes on. With
// Activation::kIdentity it is the plain product.
#pragma once

#include <cstdint>

#include "types/activation.h"

namespace quire::ops {

struct GateArgs {
  Activation function = Activation::kSigmoid;
  const float* gates = nullptr;  // [num_tokens, size], tokens gate_stride floats apart
  int64_t gate_stride = 0;       // 0: the same gates for all tokens
  float* values = nullptr;       // the same, value_stride apart
  int64_t value_stride = 0;
  int64_t num_tokens = 0;
  int64_t size = 0;
};

void check(const GateArgs& args);

}  // namespace quire::ops
