#include "ops/kv_cache.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

bool is_kv_format(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kI8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return true;
    case DType::kI32:
    case DType::kI64:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ8_0:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
    case DType::kMXFP4:
    case DType::kU8:
    case DType::kIQ2_XXS:
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
    case DType::kIQ3_XXS:
    case DType::kIQ3_S:
    case DType::kIQ1_S:
    case DType::kIQ1_M:
    case DType::kTQ1_0:
    case DType::kTQ2_0:
    case DType::kNVFP4:
    case DType::kQ8_K:
    case DType::kF8E4M3_128:
    case DType::kF8E4M3_32:
    case DType::kU4_32:
    case DType::kU4_64:
    case DType::kU4_128:
    case DType::kU4_32_F32:
    case DType::kI8_32:
    case DType::kI8_128:
    case DType::kI8_32_Z:
    case DType::kNF4:
    case DType::kFP4:
    case DType::kU4_64_HZ:
    case DType::kU4_32_FZ:
    case DType::kI8_64_HZ:
      return false;
  }
  return false;
}

void check(const KvCacheView& cache) {
  QUIRE_CHECK_MSG(
      is_kv_format(cache.dtype),
      fmt::format("a KV cache of {} has no kernels, only F32, F16, BF16, F8_E4M3, F8_E5M2 and I8", name(cache.dtype)));
  QUIRE_CHECK_MSG(cache.num_blocks >= 0 && cache.num_kv_heads > 0 && cache.head_dim > 0 && cache.block_size > 0,
                  fmt::format("num_blocks {}, num_kv_heads {}, head_dim {}, block_size {}", cache.num_blocks,
                              cache.num_kv_heads, cache.head_dim, cache.block_size));
  QUIRE_CHECK(!cache.values_are_keys || cache.values == nullptr);
  QUIRE_CHECK_MSG(block_stride(cache) >= block_bytes(cache),
                  fmt::format("blocks of {} B lie {} B apart", block_bytes(cache), cache.stride));
  QUIRE_CHECK_MSG(block_stride(cache) == block_bytes(cache) || cache.stride % 4 == 0,
                  fmt::format("blocks lie {} B apart, expected a multiple of 4", cache.stride));
  QUIRE_CHECK_MSG(cache.head_dim % 2 == 0, fmt::format("head_dim {} is odd", cache.head_dim));
}

void check(const KvWriteArgs& args) {
  check(args.cache);
  QUIRE_CHECK_MSG(args.num_tokens >= 0, fmt::format("num_tokens is {}", args.num_tokens));
  if (args.num_tokens == 0) return;
  const int64_t token_size = int64_t{args.cache.num_kv_heads} * args.cache.head_dim;
  QUIRE_CHECK_MSG(args.num_tokens == 1 || args.token_stride >= token_size,
                  fmt::format("token_stride {} is under the {} floats of a token", args.token_stride, token_size));
  QUIRE_CHECK(args.keys != nullptr && args.slots != nullptr && args.cache.keys != nullptr);
  QUIRE_CHECK(args.cache.values_are_keys || (args.values != nullptr && args.cache.values != nullptr));
  const int64_t num_slots = args.cache.num_blocks * args.cache.block_size;
  if (args.slots.host == nullptr) return;
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    QUIRE_CHECK_MSG(args.slots.host[t] >= kNoSlot && args.slots.host[t] < num_slots,
                    fmt::format("slots[{}] is {}, the cache has {}", t, args.slots.host[t], num_slots));
  }
}

}  // namespace quire::ops
