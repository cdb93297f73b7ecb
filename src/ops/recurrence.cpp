#include "ops/recurrence.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

RecurrenceArgs over_drafts(const RecurrenceArgs& args, const float* state) {
  RecurrenceArgs drafts = args;
  drafts.keys = drafts.queries = state + args.state_offset + args.heads_size();
  drafts.values = drafts.keys + args.key_size();
  drafts.decays = drafts.values + args.value_size();
  if (args.updates != nullptr) drafts.updates = drafts.decays + args.num_value_heads;
  drafts.token_stride = drafts.gate_stride = args.draft_size();
  drafts.num_tokens = args.runs.cache.most_drafts;
  drafts.out = nullptr;
  return drafts;
}

void leave_drafts(const RecurrenceArgs& args, const StateRun& run) {
  if (run.num_drafts() == 0) return;
  float* to = run.last() + args.state_offset + args.heads_size();
  const auto leave = [&to](const float* from, int64_t count) { to = std::copy_n(from, count, to); };
  for (int64_t token = run.first_token() + run.num_kept(); token < run.first_token() + run.num_tokens(); ++token) {
    leave(args.keys + token * args.token_stride, args.key_size());
    leave(args.values + token * args.token_stride, args.value_size());
    leave(args.decays + token * args.gate_stride, args.num_value_heads);
    if (args.updates != nullptr) leave(args.updates + token * args.gate_stride, args.num_value_heads);
  }
}

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
