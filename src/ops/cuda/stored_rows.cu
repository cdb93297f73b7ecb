// Rows of a weight as floats.
#include <algorithm>

#include "base/check.h"
#include "ops/cuda/device.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/stored_formats.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kValues = 8;  // of a thread
constexpr int64_t kMaxGridY = 65535;

template <DType kType>
__global__ void expand_kernel(const uint8_t* rows, int64_t row_bytes, int64_t num_rows, int64_t columns, float* out) {
  const int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kValues;
  if (index >= columns) return;
  for (int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
    float values[kValues];
    decode<kType>(rows + row * row_bytes, columns, index, values);
    float* to = out + row * columns + index;
    if (columns % kValues == 0 && reinterpret_cast<uintptr_t>(out) % sizeof(float4) == 0) {
      reinterpret_cast<float4*>(to)[0] = make_float4(values[0], values[1], values[2], values[3]);
      reinterpret_cast<float4*>(to)[1] = make_float4(values[4], values[5], values[6], values[7]);
      continue;
    }
#pragma unroll
    for (int j = 0; j < kValues; ++j) {
      if (index + j < columns) to[j] = values[j];
    }
  }
}

}  // namespace

bool has_decoder(DType dtype) {
  return with_decoder(dtype, [](auto) {});
}

void expand_rows(const StoredMatrix& weight, int64_t first_row, int64_t num_rows, float* out, cudaStream_t stream) {
  if (num_rows == 0 || weight.columns == 0) return;
  const dim3 grid(ceil_div(weight.columns, kThreads * kValues), static_cast<unsigned>(std::min(num_rows, kMaxGridY)));
  const bool known = with_decoder(weight.dtype, [&](auto type) {
    launch(expand_kernel<type.value>, grid, kThreads, 0, stream, weight.data + first_row * weight.row_bytes,
           weight.row_bytes, num_rows, weight.columns, out);
  });
  QUIRE_CHECK_MSG(known, name(weight.dtype));
}

}  // namespace quire::ops::cuda
