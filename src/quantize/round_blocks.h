// Rows of floats rounded to GGUF's formats, with the weight that each column's error has.
//
// Scales, and minima where there are any, are searched for the least weighted squared error: several ranges are tried,
// the values' own first; for each of them the best scale and minimum follow from least squares over its codes. What is
// written is the best of them after its scale has been rounded to what the format stores, so that a block is never
// further off than codes spread over the values' own range are (sum of weight times squared error).
#pragma once

#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace quire::quantize {

// Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K; and F32, F16, BF16, which are converted to nearest.
bool can_round_to(DType format);

// values: [k] finite numbers, k whole blocks of `format`. importance: [k] of 0 and above, what an error of 1 in a
// column costs (a mean squared input), or empty: all alike. out: row_bytes(format, k). False: a number or a block's
// scale is beyond what the format's 16-bit floats can hold; `out` is then unspecified.
// REQUIRES: can_round_to(format).
bool round_row(DType format, std::span<const float> values, std::span<const float> importance, uint8_t* out);

// The scale of a group of values with symmetric codes of `bits` (-2^(bits-1) to 2^(bits-1) - 1), above 0, searched as
// above from the largest magnitude over half the number of codes on; 0 where all values are 0. importance: [values] or
// empty.
float symmetric_scale(std::span<const float> values, std::span<const float> importance, int bits);

}  // namespace quire::quantize
