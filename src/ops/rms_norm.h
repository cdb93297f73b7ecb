// Root mean square norm (Zhang and Sennrich, 2019), with the residual add that comes before it:
//   hidden[t] += delta_scale * delta[t]  (when delta is given; hidden keeps the sum)
//   out[t] = hidden[t] / sqrt(mean(hidden[t]^2) + eps) * weight
// and, for the heads of queries and keys, the same of num_groups neighbours in each token.
#pragma once

#include <cstdint>

#include "ops/rows.h"

namespace quire::ops {

struct RmsNormArgs {
  float* hidden = nullptr;        // [num_tokens, num_groups, size], tokens token_stride apart; written only with delta
  const float* delta = nullptr;   // [num_tokens, num_groups, size], dense, or nullptr
  float delta_scale = 1.0f;       // of delta, before it is added
  const float* weight = nullptr;  // [size], the same for all groups
  float eps = 1e-5f;
  int64_t num_tokens = 0;
  int64_t num_groups = 1;
  int64_t size = 0;
  int64_t token_stride = 0;  // of hidden and out, in numbers; 0: dense
  OutRows out;               // as hidden; may be hidden when delta is nullptr
};

void check(const RmsNormArgs& args);

}  // namespace quire::ops
