// out[i] = in[rows[i]].
#pragma once

#include <cstdint>

namespace quire::ops {

struct GatherRowsArgs {
  const float* in = nullptr;  // [any, size]
  int64_t size = 0;
  const int32_t* rows = nullptr;  // [num_rows]
  int64_t num_rows = 0;
  float* out = nullptr;  // [num_rows, size]
};

void check(const GatherRowsArgs& args);

}  // namespace quire::ops
