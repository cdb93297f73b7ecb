// out[i] = in[rows[i]].
#pragma once

#include <cstdint>

#include "tensor/mirrored.h"

namespace quire::ops {

struct GatherRowsArgs {
  const float* in = nullptr;  // [any, size]
  int64_t size = 0;
  Mirrored<int32_t> rows;  // [num_rows]
  int64_t num_rows = 0;
  float* out = nullptr;  // [num_rows, size]
};

void check(const GatherRowsArgs& args);

}  // namespace quire::ops
