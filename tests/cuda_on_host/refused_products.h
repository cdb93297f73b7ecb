// Products that what stands for cuBLASLt refuses, as that may refuse any on a card that it knows better than we do.
#pragma once

#include <set>

#include "tensor/dtype.h"

namespace quire::ops::cuda {

// Of these formats of both sides, from here on.
void refuse_products(std::set<DType> dtypes);

}  // namespace quire::ops::cuda
