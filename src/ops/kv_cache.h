// The paged cache of one layer, and the op that fills it.
//   keys:   [num_blocks, num_kv_heads, head_dim, block_size]   (a block's tokens lie beside each other: scores of a
//   whole
//                                                               block are computed with tokens across the lanes)
//   values: [num_blocks, num_kv_heads, block_size, head_dim]
// A slot is block * block_size + offset.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace quire::ops {

struct KvCacheView {
  void* keys = nullptr;
  void* values = nullptr;
  DType dtype = DType::kF32;
  int64_t num_blocks = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_size = 0;
};

// Stores each token's key and value at its slot, rounded to the cache's dtype.
struct KvWriteArgs {
  const float* keys = nullptr;    // [num_tokens, num_kv_heads, head_dim], tokens token_stride apart
  const float* values = nullptr;  // the same
  int64_t token_stride = 0;       // in floats
  int64_t num_tokens = 0;
  const int64_t* slots = nullptr;  // [num_tokens]; all different
  KvCacheView cache;
};

void check(const KvCacheView& cache);
void check(const KvWriteArgs& args);

}  // namespace quire::ops
