// The activation xIELU (Huang and Schlag, 2024), in place:
//   values[i] = positive * x^2 + beta * x                             where x > 0
//             = negative * (e^min(x, eps) - 1 - x) + beta * x         elsewhere
// whose numbers a layer has learned.
#pragma once

#include <cstdint>

namespace quire::ops {

struct XieluArgs {
  float* values = nullptr;  // [num_tokens, size]
  int64_t num_tokens = 0;
  int64_t size = 0;
  float positive = 0;
  float negative = 0;
  float beta = 0.5f;
  float eps = -1e-6f;
};

void check(const XieluArgs& args);

}  // namespace quire::ops
