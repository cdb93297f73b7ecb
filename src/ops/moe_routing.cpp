#include "ops/moe_routing.h"

#include <fmt/format.h>

#include <limits>

#include "base/check.h"

namespace quire::ops {

void check(const MoeRoutingArgs& args) {
  QUIRE_CHECK_MSG(args.experts_per_token > 0 && args.num_experts >= args.experts_per_token,
                  fmt::format("{} of {} experts", args.experts_per_token, args.num_experts));
  QUIRE_CHECK_MSG(args.num_groups > 0 && args.num_experts % args.num_groups == 0,
                  fmt::format("{} experts in {} groups", args.num_experts, args.num_groups));
  const int32_t group_size = args.num_experts / args.num_groups;
  QUIRE_CHECK_MSG(args.groups_per_token > 0 && args.groups_per_token <= args.num_groups &&
                      args.groups_per_token * group_size >= args.experts_per_token,
                  fmt::format("{} experts out of {} groups of {}, of which {} take part", args.experts_per_token,
                              args.num_groups, group_size, args.groups_per_token));
  QUIRE_CHECK_MSG(
      args.num_tokens >= 0 && args.num_tokens <= std::numeric_limits<int32_t>::max() / args.experts_per_token,
      fmt::format("num_tokens is {}", args.num_tokens));
  QUIRE_CHECK(args.offsets != nullptr);
  if (args.num_tokens == 0) return;
  QUIRE_CHECK(args.logits != nullptr && args.weights != nullptr && args.rows != nullptr && args.tokens != nullptr);
}

}  // namespace quire::ops
