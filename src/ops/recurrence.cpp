#include "ops/recurrence.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

void check(const RecurrenceArgs& args) {
  QUIRE_CHECK_MSG(args.num_tokens >= 0 && args.num_key_heads >= 1 && args.num_value_heads >= 1 &&
                      args.num_value_heads % args.num_key_heads == 0,
                  fmt::format("{} tokens of {} value heads and {} key heads", args.num_tokens, args.num_value_heads,
                              args.num_key_heads));
  QUIRE_CHECK_MSG(args.key_dim >= 1 && args.key_dim <= kMostRecurrenceKeyDim && args.value_dim >= 1,
                  fmt::format("keys of {} and values of {}", args.key_dim, args.value_dim));
  check(args.runs);
  QUIRE_CHECK_MSG(args.state_offset >= 0 && args.state_offset + args.state_size() <= args.runs.cache.size,
                  fmt::format("{} numbers from {} on of a state of {}", args.state_size(), args.state_offset,
                              args.runs.cache.size));
  if (args.num_tokens == 0) return;
  QUIRE_CHECK(args.queries != nullptr && args.keys != nullptr && args.values != nullptr && args.decays != nullptr &&
              args.rates != nullptr && args.decay_biases != nullptr && args.out != nullptr);
}

}  // namespace quire::ops
