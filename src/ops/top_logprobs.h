// The likeliest tokens of each row of logits, and where a chosen one stands among them, for rows whose logits nobody
// looks at on the host. A log-probability is logit - log(sum(exp(logits))).
#pragma once

#include <cstdint>

namespace quire::ops {

inline constexpr int32_t kMostTopLogprobs = 128;

struct TokenLogprob {
  int32_t token = -1;  // -1: there is none; its log-probability is 0
  float logprob = 0;
};

struct TopLogprobsArgs {
  const float* in = nullptr;  // [num_rows, size]
  int64_t num_rows = 0;
  int64_t size = 0;
  int32_t num_top = 0;              // up to kMostTopLogprobs
  const int32_t* chosen = nullptr;  // [num_rows]; a negative one has no place
  // [num_rows, 1 + num_top]: the chosen one, then the likeliest, falling; of equal ones the lower index first.
  TokenLogprob* out = nullptr;
  int32_t* ranks = nullptr;  // [num_rows]: how many logits are at least as large as the chosen one's; 0 without one
};

void check(const TopLogprobsArgs& args);

// Of one row, on the host: out[1 + num_top]; returns the rank.
int32_t top_logprobs(const float* row, int64_t size, int32_t num_top, int32_t chosen, TokenLogprob* out);

}  // namespace quire::ops
