// The paged cache of one layer, and the op that fills it.
//   keys:   [num_blocks, num_kv_heads, head_dim, block_size]   (a block's tokens lie beside each other: scores of a
//                                                               whole block are computed with tokens across the lanes)
//   values: [num_blocks, num_kv_heads, block_size, head_dim]
// A device whose kernels would rather have a token's numbers beside each other keeps keys as values are kept
// (keys_by_token).
// A slot is block * block_size + offset.
//
// Every value is rounded once, when it is written; attention reads what was stored. Formats:
//   F32      as it is
//   F16      IEEE 754 binary16, to nearest even; too large becomes infinity
//   BF16     the upper half of a float, to nearest even
//   F8_E4M3  OCP FP8, to nearest even; too large and infinity become 448
//   F8_E5M2  OCP FP8, to nearest even; too large and infinity become 57,344
//   I8       one float scale for each token and kv head, of K and of V: scale = largest magnitude of the vector / 127,
//            stored value = round to even(x / scale), read as that times scale. The scales follow the numbers of their
//            head within the block, one more row of keys or one more column of values (which is where they are in keys
//            by token as well):
//              [num_blocks, num_kv_heads, (head_dim * block_size bytes, block_size floats)], at any alignment.
//            A vector that holds an infinity or NaN gets the scale NaN.
// A cache whose values are its keys keeps the keys alone: an attention that reads the same vector as key and as value
// (multi-head latent attention; DeepSeek-AI, 2024) holds it once.
// NaN stays NaN in all of them. A block's keys, and its values, are one contiguous piece of block_bytes() bytes. Other
// bytes may lie between one block's and the next one's: layers of other shapes use the same blocks' memory.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/mirrored.h"

namespace quire::ops {

struct KvCacheView {
  void* keys = nullptr;
  void* values = nullptr;
  DType dtype = DType::kF32;
  int64_t num_blocks = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_size = 0;
  bool values_are_keys = false;  // `values` is nullptr
  bool keys_by_token = false;    // Backend::keys_by_token()
  // Bytes from a block's keys to the next one's, and of values; 0: block_bytes(). Where other bytes lie between blocks,
  // a multiple of 4, so that every number and scale lies at a multiple of its own size.
  int64_t stride = 0;
};

// F32, F16, BF16, F8_E4M3, F8_E5M2, I8.
bool is_kv_format(DType dtype);

// Bytes of one token's key, or value, of one kv head; the scale of I8 included. REQUIRES: is_kv_format(dtype).
constexpr int64_t kv_vector_bytes(DType dtype, int64_t head_dim) {
  return row_bytes(dtype, head_dim) + (dtype == DType::kI8 ? static_cast<int64_t>(sizeof(float)) : 0);
}
// Bytes of the keys, or of the values, of one kv head of a block; of a block.
constexpr int64_t head_bytes(const KvCacheView& cache) {
  return kv_vector_bytes(cache.dtype, cache.head_dim) * cache.block_size;
}
constexpr int64_t block_bytes(const KvCacheView& cache) {
  return head_bytes(cache) * cache.num_kv_heads;
}
// From a block's keys, or values, to those of the next one.
constexpr int64_t block_stride(const KvCacheView& cache) {
  return cache.stride > 0 ? cache.stride : block_bytes(cache);
}

// Of a token whose key and value are stored nowhere.
inline constexpr int64_t kNoSlot = -1;

// Stores each token's key and value at its slot, rounded to the cache's dtype.
struct KvWriteArgs {
  const float* keys = nullptr;    // [num_tokens, num_kv_heads, head_dim], tokens token_stride apart
  const float* values = nullptr;  // the same; nullptr where the cache keeps keys alone
  int64_t token_stride = 0;       // in floats
  int64_t num_tokens = 0;
  Mirrored<int64_t> slots;  // [num_tokens]; kNoSlot, or all different
  KvCacheView cache;
};

void check(const KvCacheView& cache);
void check(const KvWriteArgs& args);

}  // namespace quire::ops
