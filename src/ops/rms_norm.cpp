#include "ops/rms_norm.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

void check(const RmsNormArgs& args) {
  QUIRE_CHECK_MSG(args.num_tokens >= 0 && args.num_groups > 0 && args.size > 0,
                  fmt::format("num_tokens {}, num_groups {}, size {}", args.num_tokens, args.num_groups, args.size));
  QUIRE_CHECK_MSG(args.token_stride == 0 || args.token_stride >= args.num_groups * args.size,
                  fmt::format("token_stride {} for {} groups of {}", args.token_stride, args.num_groups, args.size));
  if (args.num_tokens == 0) return;
  QUIRE_CHECK(args.hidden != nullptr && args.weight != nullptr && args.out.data != nullptr);
  const bool is_dense = args.num_groups == 1 && (args.token_stride == 0 || args.token_stride == args.size);
  QUIRE_CHECK_MSG(
      is_row_format(args.out.dtype) || (is_input_format(args.out.dtype) && is_dense && may_be_coded(args.size)),
      fmt::format("rows of {} as {}", args.size, name(args.out.dtype)));
  QUIRE_CHECK_MSG(is_row_format(args.out.dtype) || args.out.data != args.hidden, "codes take other places than floats");
  QUIRE_CHECK_MSG(args.delta == nullptr || args.out.data != args.hidden,
                  "with a delta the hidden state is an output of its own");
}

}  // namespace quire::ops
