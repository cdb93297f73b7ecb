// The likeliest tokens of each row of logits, and where a given one stands among them, for rows whose logits nobody
// looks at on the host: what sampling/logprobs.h says. A log-probability is logit - log(sum(exp(logits))).
#pragma once

#include <cstdint>

#include "tensor/mirrored.h"

namespace quire::ops {

inline constexpr int32_t kMostTopLogprobs = 32;

struct RankedToken {
  int32_t token = -1;  // -1: there is none
  int32_t rank = 0;    // 1 + how many logits are larger
  float logprob = 0;
};

// What is asked of one row.
struct RowLogprobs {
  int32_t num_top = -1;    // [0, kMostTopLogprobs]; below 0: nothing, and nothing is written
  int32_t token = -1;      // which one is looked at; below 0: TopLogprobsArgs::chosen's
  int32_t first_rank = 0;  // where in `out` the row's 1 + num_top begin
};

struct TopLogprobsArgs {
  const float* in = nullptr;  // [num_rows, size]
  int64_t num_rows = 0;
  int64_t size = 0;
  Mirrored<RowLogprobs> rows;       // [num_rows]
  const int32_t* chosen = nullptr;  // [num_rows]; below 0: there is none
  // Of each row the token that is looked at, then the num_top likeliest with logits above -inf, falling; of equal ones
  // the lower index first. A row in which a logit is NaN or +inf, or none is above -inf, has none of them.
  RankedToken* out = nullptr;
};

void check(const TopLogprobsArgs& args);

// Of one row, on the host: out[1 + num_top].
void top_logprobs(const float* row, int64_t size, int32_t num_top, int32_t token, RankedToken* out);
// Of row t of what was asked.
void top_logprobs(const TopLogprobsArgs& args, int64_t t);

}  // namespace quire::ops
