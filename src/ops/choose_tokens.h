// Draws a token out of each row of logits, where nobody wants to see the logits. -1 where one of them is NaN or +inf,
// or none is above -inf.
//
// A token's weight is exp((logit - largest) * inverse_temperature), rounded to a whole multiple of 2^-40, so that sums
// of weights are the same in whatever order they are made. The filters stand in vLLM's order: min_p, top_k, top_p.
#pragma once

#include <cstdint>

#include "tensor/mirrored.h"

namespace quire::ops {

struct TokenChoice {
  float inverse_temperature = 0;  // 0: the largest logit, the lowest index among equals; what follows has no effect
  float min_p = 0;                // tokens of less weight than this (the largest has 1) are dropped
  int32_t top_k = 0;              // over 0: the k largest are kept, and those equal to the k-th
  float top_p = 1;                // below 1: of what is left the fewest of the largest, lower indices first among
                                  // equals, whose weight reaches this share of it; at least one
  double u =
      0;  // in [0, 1): of what is left that one, by index, at which the sum of the weights exceeds u of the whole
};

struct ChooseTokensArgs {
  const float* in = nullptr;  // [num_rows, size]
  int64_t num_rows = 0;
  int64_t size = 0;               // over 0, fits 31 bits
  Mirrored<TokenChoice> choices;  // [num_rows]
  int32_t* tokens = nullptr;      // [num_rows]
};

void check(const ChooseTokensArgs& args);

inline constexpr float kWeightOne = 0x1p40f;

// Of one row, on the host.
int32_t choose_token(const float* row, int64_t size, const TokenChoice& choice);

}  // namespace quire::ops
