// What the sources of products of a few rows share: each compiles the kernels of some formats (few_rows_*.cu), and
// few_rows.cu finds them.
#pragma once

#include "ops/cuda/kernels.h"

namespace quire::ops::cuda {

struct FewRowsArgs {
  GroupedRowsWork work;
  const uint8_t* weight = nullptr;  // of the only group, where work.weights is nullptr
  int x_step = 0;                   // steps of x that are staged together
  bool aligned = false;             // quads of x lie at multiples of 16 bytes
};

// most_rows: of x that are taken together, unless a group has less; any number is right.
template <DType kType>
void multiply_stored(const FewRowsArgs& args, int64_t most_rows, cudaStream_t stream);

}  // namespace quire::ops::cuda
