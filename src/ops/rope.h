// Rotary position embedding of queries and keys, in place:
//   half style:        (x[i], x[i + r/2])  rotate by angle position * inv_freq[i], i < r/2
//   interleaved style: (x[2i], x[2i + 1])  rotate by the same angle
// with r = rotary_dim; dimensions from r on stay. The table holds cos and sin already scaled by the attention factor.
#pragma once

#include <cstdint>

#include "tensor/mirrored.h"

namespace quire::ops {

struct RopeArgs {
  float* heads = nullptr;    // [num_tokens, num_heads, head_dim], tokens token_stride apart
  int64_t token_stride = 0;  // in floats
  int64_t num_tokens = 0;
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  int32_t rotary_dim = 0;
  bool interleaved = false;
  Mirrored<int32_t> positions;   // [num_tokens], each < table_positions
  const float* table = nullptr;  // [table_positions, rotary_dim]: cos of r/2 angles, then sin of r/2
  int64_t table_positions = 0;
};

void check(const RopeArgs& args);

}  // namespace quire::ops
