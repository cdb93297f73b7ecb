// Rows rounded to the formats of ops/quantise.h in the plainest way: no search for better scales.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/dtype.h"

namespace quire::ops::reference {

// A row of k floats as a checkpoint would store it in `dtype`: quantised_row_bytes().
std::vector<uint8_t> rounded_row(DType dtype, const std::vector<float>& x);

}  // namespace quire::ops::reference
