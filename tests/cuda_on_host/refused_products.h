// Products that what stands for cuBLASLt refuses, as that may refuse any on a card that it knows better than we do.
#pragma once

#include <set>

#include "tensor/dtype.h"

namespace quire::ops::cuda {

// Of these formats of both sides, from here on.
void refuse_products(std::set<DType> dtypes);

// Whether it multiplies 8-bit floats by their scales, as on Hopper's cards, from here on; else without, as on others.
void scale_products(bool scales);

}  // namespace quire::ops::cuda
