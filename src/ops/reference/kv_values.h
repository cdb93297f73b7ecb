// The paged cache one vector at a time: where a token's key and value lie, and how each format rounds and reads.
#pragma once

#include <cstdint>

#include "ops/kv_cache.h"

namespace quire::ops::reference {

// The code of a float in F16, BF16, F8_E4M3 or F8_E5M2 as ops/kv_cache.h says, and the value of a code.
uint16_t float_to_code(DType dtype, float value);
float code_to_float(DType dtype, uint16_t code);

// The key (is_key) or value of one token and kv head: head_dim floats written to the cache, one number read from it.
void store_kv(const KvCacheView& cache, bool is_key, int64_t slot, int64_t head, const float* vector);
float load_kv(const KvCacheView& cache, bool is_key, int64_t slot, int64_t head, int64_t d);

}  // namespace quire::ops::reference
