// Kernels of recurrent layers, as kernels.h has the others.
#pragma once

#include <cuda_runtime.h>

#include "ops/recurrence.h"
#include "ops/short_conv.h"

namespace quire::ops::cuda {

void convolve(const ShortConvArgs& args, cudaStream_t stream);
void apply_recurrence(const RecurrenceArgs& args, cudaStream_t stream);

}  // namespace quire::ops::cuda
