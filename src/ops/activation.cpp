#include "ops/activation.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

void check(const ActivationArgs& args) {
  QUIRE_CHECK_MSG(args.num_tokens >= 0 && args.size >= 0,
                  fmt::format("num_tokens {}, size {}", args.num_tokens, args.size));
  if (args.num_tokens == 0 || args.size == 0) return;
  QUIRE_CHECK(args.in.data != nullptr && args.out.data != nullptr);
  QUIRE_CHECK_MSG(is_row_format(args.in.dtype) &&
                      (is_row_format(args.out.dtype) || (is_input_format(args.out.dtype) && may_be_coded(args.size))),
                  fmt::format("{} to {} numbers of {}", name(args.in.dtype), args.size, name(args.out.dtype)));
  QUIRE_CHECK_MSG(args.in.data != args.out.data || (!args.gated && args.in.dtype == args.out.dtype),
                  "a gated activation reads twice what it writes");
}

}  // namespace quire::ops
