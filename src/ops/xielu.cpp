#include "ops/xielu.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

void check(const XieluArgs& args) {
  QUIRE_CHECK_MSG(args.num_tokens >= 0 && args.size >= 0,
                  fmt::format("num_tokens {}, size {}", args.num_tokens, args.size));
  if (args.num_tokens == 0 || args.size == 0) return;
  QUIRE_CHECK(args.values != nullptr);
}

}  // namespace quire::ops
