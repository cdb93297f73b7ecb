// Weights rounded to fewer bits while they are loaded. Formats and what they round to:
//   Q8_0     32 values share a scale, the largest magnitude's share of 127; a value is at most half a scale off (and
//   the
//            half that the scale's own rounding to a half of 16 bits costs the largest)
//   Q4_1     32 values share a scale and a minimum, chosen for the least squared error: never more of it than codes
//            spread evenly from the smallest value to the largest give
//   Q4_K     the same with the scales and minima of 8 such groups rounded to 6 bits; no minimum is above 0
//   F8_E4M3  a row shares a float, the largest magnitude's share of 448
// A group (a row of F8_E4M3) with a value that is NaN or infinite becomes NaN.
// F8_E4M3_128 is how checkpoints with scales of blocks are held (nn/scaled_weights.h); nothing is rounded to it.
#pragma once

#include "tensor/dtype.h"

namespace quire::ops {

constexpr bool can_be_quantised(DType stored) {
  return stored == DType::kF32 || stored == DType::kF16 || stored == DType::kBF16;
}

constexpr bool is_quantisation_format(DType dtype) {
  return dtype == DType::kQ8_0 || dtype == DType::kQ4_1 || dtype == DType::kQ4_K || dtype == DType::kF8E4M3;
}

// Rows of 8-bit floats end with the floats that their codes are multiplied by, at any alignment. Codes that pack() is
// given are numbers; where a value is NaN its float is.
inline constexpr int64_t kScaleColumns = 128;   // that share one of F8_E4M3_128; the last has what is left of a row
inline constexpr int64_t kMxScaleColumns = 32;  // of F8_E4M3_32
constexpr bool has_row_scales(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kF8E4M3_128 || dtype == DType::kF8E4M3_32;
}
// Columns that share a float; 0: all of a row, or there is none.
constexpr int64_t columns_of_scale(DType dtype) {
  if (dtype == DType::kF8E4M3_128) return kScaleColumns;
  return dtype == DType::kF8E4M3_32 ? kMxScaleColumns : 0;
}
// Floats of a row of k values.
constexpr int64_t row_scales(DType dtype, int64_t k) {
  const int64_t together = columns_of_scale(dtype);
  if (together > 0) return (k + together - 1) / together;
  return dtype == DType::kF8E4M3 ? 1 : 0;
}
// Which of them is a column's.
constexpr int64_t scale_of_column(DType dtype, int64_t column) {
  const int64_t together = columns_of_scale(dtype);
  return together > 0 ? column / together : 0;
}

// A row of k values as it is rounded, or given to Backend::pack(): codes, then its floats if it has any.
constexpr int64_t quantised_row_bytes(DType dtype, int64_t k) {
  return row_bytes(dtype, k) + row_scales(dtype, k) * int64_t{sizeof(float)};
}

}  // namespace quire::ops
