// The activation of a feed-forward block, f one of types/activation.h:
//   gated: out[t][i] = f(in[t][i]) * in[t][size + i]  (Shazeer, 2020)
//   plain: out[t][i] = f(in[t][i])
#pragma once

#include <cstdint>

#include "ops/rows.h"
#include "types/activation.h"

namespace quire::ops {

struct ActivationArgs {
  Activation function = Activation::kSilu;
  bool gated = true;
  Rows in;  // [num_tokens, 2 * size], gate then up; plain: [num_tokens, size]
  int64_t num_tokens = 0;
  int64_t size = 0;
  OutRows out;  // [num_tokens, size]; plain: may be `in`, of its dtype
};

void check(const ActivationArgs& args);

}  // namespace quire::ops
