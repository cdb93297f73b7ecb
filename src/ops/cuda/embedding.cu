// Rows of a table as it is stored.
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
__global__ void embed_kernel(const TokenId* ids, int64_t num_tokens, const uint8_t* table, int64_t columns,
                             int64_t row_bytes, float* out) {
  const int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kValues;
  if (index >= columns) return;
  for (int64_t t = blockIdx.y; t < num_tokens; t += gridDim.y) {
    float values[kValues];
    decode<kType>(table + int64_t{ids[t]} * row_bytes, columns, index, values);
    float* to = out + t * columns + index;
#pragma unroll
    for (int j = 0; j < kValues; ++j) {
      if (index + j < columns) to[j] = values[j];
    }
  }
}

}  // namespace

void embed(const EmbeddingArgs& args, cudaStream_t stream) {
  const int64_t columns = args.table.shape[1];
  if (args.num_tokens == 0 || columns == 0) return;
  const dim3 grid(ceil_div(columns, kThreads * kValues), static_cast<unsigned>(std::min(args.num_tokens, kMaxGridY)));
  const bool known = with_decoder(args.table.dtype, [&](auto type) {
    launch(embed_kernel<type.value>, grid, kThreads, 0, stream, args.ids.device, args.num_tokens,
           static_cast<const uint8_t*>(args.table.data), columns, packed_row_bytes(args.table.dtype, columns),
           args.out);
  });
  QUIRE_CHECK_MSG(known, name(args.table.dtype));
}

}  // namespace quire::ops::cuda
