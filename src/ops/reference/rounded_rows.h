// Rows as Backend::pack() is given them, in the plainest way: rounded to the formats of ops/quantise.h without a search
// for better scales, and read.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/dtype.h"

namespace quire::ops::reference {

// A row of k floats as a checkpoint would store it in `dtype`: quantised_row_bytes().
std::vector<uint8_t> rounded_row(DType dtype, const std::vector<float>& x);

// Value `column` of a row of k, with the row's floats where its format has them.
float row_value(DType dtype, const uint8_t* row, int64_t k, int64_t column);

}  // namespace quire::ops::reference
