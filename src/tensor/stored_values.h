// Values of every weight format, read one at a time from rows as a checkpoint stores them: what the formats mean. For
// small tensors at load, and for tests of what is faster.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace quire {

float half_to_float(uint16_t bits);      // IEEE 754 binary16
float bfloat16_to_float(uint16_t bits);  // the upper half of a float
// To nearest, ties to even; what is too large becomes infinite.
uint16_t float_to_half(float x);
uint16_t float_to_bfloat16(float x);

// Value `index` of the row that begins at `row`, at any alignment. Scales times codes are whole in a float, so that
// only the last sum of a format with a minimum is rounded, once: another order of the same arithmetic gives the same
// bits.
float stored_value(DType dtype, const void* row, int64_t index);

// All `count` values of a row.
void read_stored_row(DType dtype, const void* row, int64_t count, float* out);

// Formats that stored_value reads: F32, F16, BF16, GGUF's blocks and those of coded weights.
bool is_weight_format(DType dtype);

}  // namespace quire
