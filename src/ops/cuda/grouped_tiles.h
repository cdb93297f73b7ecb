// What the sources of grouped products by tiles share: each compiles the kernels of some formats (grouped_tiles_*.cu),
// and grouped_tiles.cu finds them.
#pragma once

#include "ops/cuda/kernels.h"

namespace quire::ops::cuda {

template <DType kType>
void multiply_tiles(const GroupedRowsWork& work, cudaStream_t stream);

}  // namespace quire::ops::cuda
