#include "ops/prepare_heads.h"

#include <fmt/format.h>

#include "base/check.h"
#include "ops/rope.h"

namespace quire::ops {

KvWriteArgs write_of(const PrepareHeadsArgs& args) {
  const float* keys = args.heads + int64_t{args.num_heads} * args.cache.head_dim;
  return {.keys = keys,
          .values = keys + int64_t{args.cache.num_kv_heads} * args.cache.head_dim,
          .token_stride = args.token_stride,
          .num_tokens = args.num_tokens,
          .slots = args.slots,
          .cache = args.cache};
}

RopeArgs rotation_of(const PrepareHeadsArgs& args) {
  return {.heads = args.heads,
          .token_stride = args.token_stride,
          .num_tokens = args.num_tokens,
          .num_heads = args.num_heads + args.cache.num_kv_heads,
          .head_dim = args.cache.head_dim,
          .rotary_dim = args.rotary_dim,
          .interleaved = args.interleaved,
          .positions = args.positions,
          .table = args.table,
          .table_positions = args.table_positions};
}

void check(const PrepareHeadsArgs& args) {
  check(write_of(args));
  QUIRE_CHECK(!args.cache.values_are_keys);
  const int32_t kv_heads = args.cache.num_kv_heads;
  QUIRE_CHECK_MSG(args.num_heads > 0, fmt::format("{} heads", args.num_heads));
  const int64_t token_size = int64_t{args.num_heads + 2 * kv_heads} * args.cache.head_dim;
  QUIRE_CHECK_MSG(args.num_tokens <= 1 || args.token_stride >= token_size,
                  fmt::format("token_stride {} is under the {} floats of a token", args.token_stride, token_size));
  QUIRE_CHECK((args.query_weight == nullptr) == (args.key_weight == nullptr));
  if (args.rotary_dim > 0) check(rotation_of(args));
}

}  // namespace quire::ops
