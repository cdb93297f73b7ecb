// What happens between the projection of queries, keys and values and attention, in place: queries and keys are
// normalised head by head (where weights are given; ops/rms_norm.h) and rotated (ops/rope.h), keys and values are
// stored in the cache (ops/kv_cache.h). Afterwards the queries are those that attention reads; what the places of keys
// and values hold is not said.
#pragma once

#include <cstdint>

#include "ops/kv_cache.h"
#include "ops/rope.h"
#include "tensor/mirrored.h"

namespace quire::ops {

struct PrepareHeadsArgs {
  float* heads = nullptr;    // [num_tokens, num_heads + 2 * kv heads, head_dim]: queries, keys, values
  int64_t token_stride = 0;  // in floats
  int64_t num_tokens = 0;
  int32_t num_heads = 0;  // of queries
  // [head_dim]; nullptr, both: not normalised.
  const float* query_weight = nullptr;
  const float* key_weight = nullptr;
  float eps = 1e-5f;
  // As in RopeArgs; rotary_dim 0: not rotated.
  int32_t rotary_dim = 0;
  bool interleaved = false;
  Mirrored<int32_t> positions;
  const float* table = nullptr;
  int64_t table_positions = 0;
  Mirrored<int64_t> slots;  // as in KvWriteArgs
  KvCacheView cache;        // with values of their own; its kv heads and head_dim are those of `heads`
};

void check(const PrepareHeadsArgs& args);

// The ops that it is made of, but for the norms.
RopeArgs rotation_of(const PrepareHeadsArgs& args);  // of queries and keys, which lie beside each other
KvWriteArgs write_of(const PrepareHeadsArgs& args);

}  // namespace quire::ops
