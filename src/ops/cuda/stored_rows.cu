// Stored rows as floats: those of a weight one after the other, those of a table by their ids.
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

// [num_rows, columns]; `ids`: of the rows at `rows`, nullptr: all in their order. Of a part of a table the first row is
// first_id's, and ids of rows that are not in it give zeros.
struct RowsAsFloats {
  const uint8_t* rows;
  int64_t row_bytes;
  const int32_t* ids;
  int64_t first_id;
  int64_t num_stored;  // rows of the part
  int64_t num_rows;
  int64_t columns;
  OutRows out;  // F32 or F16
};

// kValues numbers at an index that is a multiple of that.
__device__ void store_vector(const OutRows& out, int64_t index, const float (&values)[kValues]) {
  if (out.dtype == DType::kF32) {
    auto* to = reinterpret_cast<float4*>(static_cast<float*>(out.data) + index);
    to[0] = make_float4(values[0], values[1], values[2], values[3]);
    to[1] = make_float4(values[4], values[5], values[6], values[7]);
    return;
  }
  unsigned words[kValues / 2];
#pragma unroll
  for (int j = 0; j < kValues / 2; ++j) {
    words[j] = static_cast<unsigned>(__half_as_ushort(__float2half_rn(values[2 * j]))) |
               static_cast<unsigned>(__half_as_ushort(__float2half_rn(values[2 * j + 1]))) << 16;
  }
  *reinterpret_cast<uint4*>(static_cast<uint16_t*>(out.data) + index) =
      make_uint4(words[0], words[1], words[2], words[3]);
}

template <DType kType>
__global__ void read_rows_kernel(RowsAsFloats work) {
  begin_kernel();
  const int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kValues;
  if (index >= work.columns) return;
  for (int64_t row = blockIdx.y; row < work.num_rows; row += gridDim.y) {
    const int64_t from = work.ids == nullptr ? row : work.ids[row] - work.first_id;
    float values[kValues] = {};
    if (from >= 0 && from < work.num_stored)
      decode<kType>(work.rows + from * work.row_bytes, work.columns, index, values);
    const int64_t to = row * work.columns + index;
    if (work.columns % kValues == 0 && reinterpret_cast<uintptr_t>(work.out.data) % sizeof(float4) == 0) {
      store_vector(work.out, to, values);
      continue;
    }
#pragma unroll
    for (int j = 0; j < kValues; ++j) {
      if (index + j < work.columns) store_number(work.out, to + j, values[j]);
    }
  }
}

void read_rows(DType dtype, const RowsAsFloats& work, cudaStream_t stream) {
  if (work.num_rows == 0 || work.columns == 0) return;
  const dim3 grid(ceil_div(work.columns, kThreads * kValues),
                  static_cast<unsigned>(std::min(work.num_rows, kMaxGridY)));
  const bool known =
      with_decoder(dtype, [&](auto type) { launch(read_rows_kernel<type.value>, grid, kThreads, 0, stream, work); });
  QUIRE_CHECK_MSG(known, name(dtype));
}

}  // namespace

bool has_decoder(DType dtype) {
  return with_decoder(dtype, [](auto) {});
}

void expand_rows(const StoredMatrix& weight, int64_t first_row, int64_t num_rows, OutRows out, cudaStream_t stream) {
  read_rows(weight.dtype,
            {.rows = weight.data + first_row * weight.row_bytes,
             .row_bytes = weight.row_bytes,
             .ids = nullptr,
             .first_id = 0,
             .num_stored = num_rows,
             .num_rows = num_rows,
             .columns = weight.columns,
             .out = out},
            stream);
}

void embed(const EmbeddingArgs& args, cudaStream_t stream) {
  read_rows(args.table.dtype,
            {.rows = static_cast<const uint8_t*>(args.table.data),
             .row_bytes = row_stride(args),
             .ids = args.ids.device,
             .first_id = args.first_id,
             .num_stored = args.table.shape[0],
             .num_rows = args.num_tokens,
             .columns = args.table.shape[1],
             .out = args.out},
            stream);
}

}  // namespace quire::ops::cuda
