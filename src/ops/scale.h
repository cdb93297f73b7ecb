// values[i] = scale * values[i], and where there is a cap, soft_cap * tanh(values[i] / soft_cap) of that (Gemma Team,
// 2024): embeddings that grow on their way into the layers, logits on their way out. With a limit the result is cut off
// at it, on both sides of 0.
#pragma once

#include <cstdint>

namespace quire::ops {

struct ScaleArgs {
  float* values = nullptr;  // [num_rows, size]
  float scale = 1.0f;
  float soft_cap = 0;  // 0: none
  float limit = 0;     // 0: none
  int64_t num_rows = 0;
  int64_t size = 0;
};

void check(const ScaleArgs& args);

}  // namespace quire::ops
