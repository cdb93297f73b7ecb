// What the formats IQ1, IQ2 and IQ3 mean: value i of a block. Layouts: tensor/dtype.h.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace quire {

// REQUIRES: dtype is one of theirs.
float grid_value(DType dtype, const uint8_t* block, int64_t i);

}  // namespace quire
