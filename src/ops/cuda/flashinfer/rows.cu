// Queries as FlashInfer takes them, and its answers as they are wanted: a row for each token of a prompt.
#include <algorithm>

#include "base/check.h"
#include "ops/cuda/device.cuh"
#include "ops/cuda/flashinfer/kernels.h"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {
namespace {

constexpr int kThreads = 256;

// A block a row. kQuads: four neighbours at once.
template <bool kQuads>
__global__ void copy_rows_kernel(const Rows from, int64_t from_stride, const int32_t* from_tokens, const OutRows to,
                                 int64_t to_stride, const int32_t* to_tokens, int64_t size) {
  begin_kernel();
  const auto row = static_cast<int64_t>(blockIdx.x);
  const int64_t first = (from_tokens == nullptr ? row : from_tokens[row]) * from_stride;
  const int64_t out = (to_tokens == nullptr ? row : to_tokens[row]) * to_stride;
  if constexpr (kQuads) {
#pragma unroll 4
    for (int64_t i = 4 * int64_t{threadIdx.x}; i < size; i += 4 * kThreads)
      store_quad(to, out + i, load_quad(from, first + i));
  } else {
    for (int64_t i = threadIdx.x; i < size; i += kThreads) store_number(to, out + i, load_number(from, first + i));
  }
}

void copy_rows(const Rows& from, int64_t from_stride, const int32_t* from_tokens, const OutRows& to, int64_t to_stride,
               const int32_t* to_tokens, int64_t num_rows, int64_t size, cudaStream_t stream) {
  const bool quads =
      size % 4 == 0 && are_quads(from.data, from.dtype, from_stride) && are_quads(to.data, to.dtype, to_stride);
  launch(quads ? copy_rows_kernel<true> : copy_rows_kernel<false>, dim3(static_cast<unsigned>(num_rows)), kThreads, 0,
         stream, from, from_stride, from_tokens, to, to_stride, to_tokens, size);
}

}  // namespace

void gather_rounded(const float* from, int64_t stride, const int32_t* tokens, int64_t num_tokens, int64_t size,
                    DType to, void* out, cudaStream_t stream) {
  copy_rows(Rows(from), stride, tokens, OutRows(out, to), size, nullptr, num_tokens, size, stream);
}

void scatter_floats(const void* from, DType dtype, const int32_t* tokens, int64_t num_tokens, int64_t size, float* out,
                    int64_t out_stride, cudaStream_t stream) {
  copy_rows(Rows(from, dtype), size, nullptr, OutRows(out), out_stride, tokens, num_tokens, size, stream);
}

}  // namespace quire::ops::cuda
