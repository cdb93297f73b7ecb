#include "ops/short_conv.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

void check(const ShortConvArgs& args) {
  QUIRE_CHECK_MSG(
      args.kernel >= 2 && args.kernel <= kMostConvTokens && args.num_channels >= 1 && args.num_tokens >= 0,
      fmt::format("{} tokens of {} channels, a kernel of {}", args.num_tokens, args.num_channels, args.kernel));
  check(args.runs);
  QUIRE_CHECK_MSG(args.state_offset >= 0 && args.state_offset + args.state_size() <= args.runs.cache.size,
                  fmt::format("{} numbers from {} on of a state of {}", args.state_size(), args.state_offset,
                              args.runs.cache.size));
  if (args.num_tokens == 0) return;
  QUIRE_CHECK(args.in != nullptr && args.weight != nullptr && args.out != nullptr && args.in != args.out);
  QUIRE_CHECK_MSG(args.num_tokens == 1 || (args.in_stride >= args.num_channels && args.out_stride >= args.num_channels),
                  fmt::format("strides {} and {} for {} floats", args.in_stride, args.out_stride, args.num_channels));
}

}  // namespace quire::ops
