#include "ops/moe_combine.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

void check(const MoeCombineArgs& args) {
  QUIRE_CHECK_MSG(
      args.num_tokens >= 0 && args.size >= 0 && args.experts_per_token > 0,
      fmt::format("num_tokens {}, size {}, experts_per_token {}", args.num_tokens, args.size, args.experts_per_token));
  if (args.num_tokens == 0 || args.size == 0) return;
  QUIRE_CHECK(args.experts != nullptr && args.rows != nullptr && args.weights != nullptr && args.out != nullptr);
  QUIRE_CHECK(args.shared != nullptr || args.shared_gate == nullptr);
}

}  // namespace quire::ops
