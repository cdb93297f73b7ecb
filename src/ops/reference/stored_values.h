// Values of every weight format, read one at a time from rows as a checkpoint stores them.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace quire::ops::reference {

float half_to_float(uint16_t bits);      // IEEE 754 binary16
float bfloat16_to_float(uint16_t bits);  // the upper half of a float

// Value `index` of the row that begins at `row`, at any alignment.
float stored_value(DType dtype, const void* row, int64_t index);

// Formats that stored_value reads: F32, F16, BF16, Q4_0, Q4_1, Q8_0.
bool is_weight_format(DType dtype);

}  // namespace quire::ops::reference
