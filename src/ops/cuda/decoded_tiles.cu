// Which kernel multiplies some rows by decoded tiles, and the sum of what blocks of the same rows have summed.
#include "ops/cuda/decoded_tiles.h"

#include "base/check.h"
#include "ops/cuda/decoded_formats.h"
#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {
namespace {

constexpr int kThreads = 256;

// Blocks: (rows, those of a row over kThreads).
__global__ void add_parts_kernel(const float* parts, int num_splits, const float* factors, const float* bias,
                                 int64_t columns, OutRows out, int64_t out_stride) {
  begin_kernel();
  const int64_t row = blockIdx.x;
  const int64_t column = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (column >= columns) return;
  const int64_t stride = int64_t{gridDim.x} * columns;
  const float* from = parts + row * columns + column;
  float sum = 0;
  for (int split = 0; split < num_splits; ++split) sum += from[split * stride];
  store_number(out, row * out_stride + column,
               fmaf(sum, factors == nullptr ? 1.0f : factors[row], bias == nullptr ? 0.0f : bias[column]));
}

}  // namespace

void add_parts(const float* parts, int num_splits, const float* factors, const float* bias, int64_t num_rows,
               int64_t columns, const OutRows& out, int64_t out_stride, cudaStream_t stream) {
  launch(add_parts_kernel, dim3(static_cast<unsigned>(num_rows), ceil_div(columns, kThreads)), kThreads, 0, stream,
         parts, num_splits, factors, bias, columns, out, out_stride);
}

bool has_decoded_tiles(DType dtype) {
  return with_decoded_format(dtype, [](auto) {});
}

// Rows are filled up to whole batches of 64 at most, columns to whole slices of a warp: of F8_E4M3 1,024.
int64_t decoded_scratch_bytes(int64_t num_rows, const StoredMatrix& weight, DType out) {
  const int64_t rows = (num_rows + 63) / 64 * 64;
  const int64_t part = out == DType::kF32 ? 0 : num_rows * weight.rows;
  return rows * ((weight.columns + 1023) / 1024 * 1024) * 2 + (num_rows + 4 + part) * int64_t{sizeof(float)};
}

void multiply_decoded(const DecodedWork& work, cudaStream_t stream) {
  if (work.num_rows == 0 || work.weight.rows == 0) return;
  const bool known =
      with_decoded_format(work.weight.dtype, [&](auto type) { multiply_decoded_as<type.value>(work, stream); });
  QUIRE_CHECK_MSG(known, name(work.weight.dtype));
}

}  // namespace quire::ops::cuda
