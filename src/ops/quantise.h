// Weights rounded to fewer bits while they are loaded. Formats and what they round to:
//   Q8_0     32 values share a scale, the largest magnitude's share of 127; a value is at most half a scale off (and
//   the
//            half that the scale's own rounding to a half of 16 bits costs the largest)
//   Q4_1     32 values share a scale and a minimum, chosen for the least squared error: never more of it than codes
//            spread evenly from the smallest value to the largest give
//   Q4_K     the same with the scales and minima of 8 such groups rounded to 6 bits; no minimum is above 0
//   F8_E4M3  a row shares a float, the largest magnitude's share of 448
// A group (a row of F8_E4M3) with a value that is no number or infinite becomes values that are no numbers.
#pragma once

#include "tensor/dtype.h"

namespace quire::ops {

constexpr bool can_be_quantised(DType stored) {
  return stored == DType::kF32 || stored == DType::kF16 || stored == DType::kBF16;
}

constexpr bool is_quantisation_format(DType dtype) {
  return dtype == DType::kQ8_0 || dtype == DType::kQ4_1 || dtype == DType::kQ4_K || dtype == DType::kF8E4M3;
}

// A row of k values as it is rounded, or given to Backend::pack(): F8_E4M3 has its float behind the codes.
constexpr int64_t quantised_row_bytes(DType dtype, int64_t k) {
  return row_bytes(dtype, k) + (dtype == DType::kF8E4M3 ? 4 : 0);
}

}  // namespace quire::ops
