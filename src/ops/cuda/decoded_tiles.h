// What the sources of products by decoded tiles share: each compiles the kernels of some formats (decoded_tiles_*.cu),
// and decoded_tiles.cu finds them.
#pragma once

#include "ops/cuda/kernels.h"

namespace quire::ops::cuda {

// Rows of x that the kernels take together: 16, 32 or 64 for fewer, 64 for any number.
constexpr int decoded_row_tiles(int64_t num_rows) {
  return num_rows <= 16 ? 2 : num_rows <= 32 ? 4 : 8;
}
constexpr int64_t kRowsOfTile = 8;

template <DType kType>
void multiply_decoded_as(const DecodedWork& work, cudaStream_t stream);

// out[m][n] = factors[m] * (the sum of parts [num_splits, num_rows, columns]) + bias[n]; factors and bias may be
// nullptr.
void add_parts(const float* parts, int num_splits, const float* factors, const float* bias, int64_t num_rows,
               int64_t columns, const OutRows& out, int64_t out_stride, cudaStream_t stream);

}  // namespace quire::ops::cuda
