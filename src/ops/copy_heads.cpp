#include "ops/copy_heads.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

void check(const CopyHeadsArgs& args) {
  QUIRE_CHECK_MSG(args.num_tokens >= 0 && args.num_heads >= 0 && args.size >= 0,
                  fmt::format("{} tokens, {} heads of {}", args.num_tokens, args.num_heads, args.size));
  if (args.num_tokens == 0 || args.num_heads == 0 || args.size == 0) return;
  QUIRE_CHECK(args.in != nullptr && args.out != nullptr);
  QUIRE_CHECK_MSG(
      args.num_heads == 1 || (args.in_head_stride >= args.size && args.out_head_stride >= args.size),
      fmt::format("head strides {} and {} for {} floats", args.in_head_stride, args.out_head_stride, args.size));
}

}  // namespace quire::ops
