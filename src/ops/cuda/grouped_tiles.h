// What the sources of grouped products by tiles share: each compiles the kernels of some formats (grouped_tiles_*.cu),
// and grouped_tiles.cu finds them.
#pragma once

#include "ops/cuda/kernels.h"

namespace quire::ops::cuda {

// Of the formats of decoded_formats.h: grouped_panels.cuh, as many rows at once as the scratch has room for. False
// where rows of x do not follow each other in a way that this reads, not one finds room, or rows of 16 bits are no
// whole eights of numbers: nothing was done.
template <DType kType>
bool multiply_panels(const GroupedRowsWork& work, void* scratch, int64_t scratch_bytes, cudaStream_t stream);

// The others, and what is left over: grouped_tiles.cuh.
template <DType kType>
void multiply_tiles(const GroupedRowsWork& work, cudaStream_t stream);

}  // namespace quire::ops::cuda
