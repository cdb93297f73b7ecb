#include "ops/rope.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

void check(const RopeArgs& args) {
  QUIRE_CHECK_MSG(args.num_tokens >= 0 && args.num_heads > 0,
                  fmt::format("num_tokens {}, num_heads {}", args.num_tokens, args.num_heads));
  QUIRE_CHECK_MSG(args.rotary_dim >= 0 && args.rotary_dim % 2 == 0 && args.rotary_dim <= args.head_dim,
                  fmt::format("rotary_dim {}, head_dim {}", args.rotary_dim, args.head_dim));
  if (args.num_tokens == 0) return;
  QUIRE_CHECK(args.heads != nullptr && args.positions != nullptr && args.table != nullptr);
  QUIRE_CHECK_MSG(args.num_tokens == 1 || args.token_stride >= int64_t{args.num_heads} * args.head_dim,
                  fmt::format("token_stride {} for {} heads of {}", args.token_stride, args.num_heads, args.head_dim));
  if (args.positions.host == nullptr) return;
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    QUIRE_CHECK_MSG(
        args.positions.host[t] >= 0 && args.positions.host[t] < args.table_positions,
        fmt::format("positions[{}] is {}, the table has {}", t, args.positions.host[t], args.table_positions));
  }
}

}  // namespace quire::ops
