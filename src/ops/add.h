// hidden[i] += delta[i]: a residual connection that no norm follows.
#pragma once

#include <cstdint>

namespace quire::ops {

struct AddArgs {
  float* hidden = nullptr;       // [num_tokens, size]
  const float* delta = nullptr;  // [num_tokens, size]
  float delta_scale = 1.0f;      // of delta, before it is added
  int64_t num_tokens = 0;
  int64_t size = 0;
};

void check(const AddArgs& args);

}  // namespace quire::ops
