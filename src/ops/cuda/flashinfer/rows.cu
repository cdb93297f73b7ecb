// Queries as FlashInfer takes them, and its answers as they are wanted: a row for each token of a prompt.
#include <algorithm>

#include "base/check.h"
#include "ops/cuda/device.cuh"
#include "ops/cuda/flashinfer/kernels.h"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {
namespace {

constexpr int kThreads = 256;

// A block a row.
__global__ void copy_rows(const Rows from, int64_t from_stride, const int32_t* from_tokens, const OutRows to,
                          int64_t to_stride, const int32_t* to_tokens, int64_t size) {
  begin_kernel();
  const auto row = static_cast<int64_t>(blockIdx.x);
  const int64_t first = (from_tokens == nullptr ? row : from_tokens[row]) * from_stride;
  const int64_t out = (to_tokens == nullptr ? row : to_tokens[row]) * to_stride;
  for (int64_t i = threadIdx.x; i < size; i += blockDim.x) store_number(to, out + i, load_number(from, first + i));
}

}  // namespace

void gather_rounded(const float* from, int64_t stride, const int32_t* tokens, int64_t num_tokens, int64_t size,
                    DType to, void* out, cudaStream_t stream) {
  launch(copy_rows, dim3(static_cast<unsigned>(num_tokens)), kThreads, 0, stream, Rows(from), stride, tokens,
         OutRows(out, to), size, nullptr, size);
}

void scatter_floats(const void* from, DType dtype, const int32_t* tokens, int64_t num_tokens, int64_t size, float* out,
                    int64_t out_stride, cudaStream_t stream) {
  launch(copy_rows, dim3(static_cast<unsigned>(num_tokens)), kThreads, 0, stream, Rows(from, dtype), size, nullptr,
         OutRows(out), out_stride, tokens, size);
}

}  // namespace quire::ops::cuda
