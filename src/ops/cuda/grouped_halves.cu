// Products of groups of a few rows with weights of 16 bits of their own, by tensor cores: experts, of which a step of
// decoding asks all for some rows each. What counts is that weights arrive at the speed of memory, once for up to 32
// rows. A warp has 16 rows of a weight, the tensor cores' left matrix, whose fragments its lanes load as they lie, 16
// bytes each; which columns a lane has is free as long as x has the same. x, rounded as the weight is, lies in shared
// memory for all warps of a block, as many columns of it at once as there is room for.
#include "base/check.h"
#include "ops/cuda/device.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_cores.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kWeightRows = 16;  // of a warp
constexpr int kVector = 8;       // numbers of 16 bytes
constexpr int kStep = 128;       // columns that a warp loads together: of each of its rows four vectors a lane
constexpr int kVectors = kStep / (4 * kVector);
constexpr int kPad = 32;        // numbers between rows of x, against conflicts of banks
constexpr int kMostTiles = 4;   // of 8 rows of x
constexpr int kColumns = 1024;  // of x at once, of kMostTiles
constexpr int kSharedBytes = kMostTiles * 8 * (kColumns + kPad) * 2;

// What a lane has of a step of its warp's rows: of row lane / 4, then of row lane / 4 + 8.
struct Step {
  uint4 rows[2][kVectors];
};

struct Weights {
  const uint8_t* rows[2];  // a lane's
  int64_t columns;

  __device__ void load(int64_t column, Step& step) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = column + v * (4 * kVector);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        step.rows[i][v] =
            at < columns ? __ldg(reinterpret_cast<const uint4*>(rows[i] + 2 * at)) : make_uint4(0, 0, 0, 0);
      }
    }
  }
};

// Columns [begin, begin + kColumnsAtOnce) of rows of x as T; zeros behind the last column and the last row.
template <typename T, int kTiles>
__device__ void stage(const float* x, int64_t x_stride, int num_rows, int64_t columns, int64_t begin, T* shared) {
  constexpr int kColumnsAtOnce = kColumns * kMostTiles / kTiles;
  const auto count = static_cast<int>(min(int64_t{kColumnsAtOnce}, (columns - begin + kStep - 1) / kStep * kStep));
  for (int i = static_cast<int>(threadIdx.x) * 4; i < kTiles * 8 * count; i += kThreads * 4) {
    const int row = i / count;
    const int column = i % count;
    const bool there = row < num_rows && begin + column < columns;  // whole quads: columns are of vectors
    const float4 four =
        there ? *reinterpret_cast<const float4*>(x + row * x_stride + begin + column) : make_float4(0, 0, 0, 0);
    *reinterpret_cast<uint2*>(shared + row * (kColumnsAtOnce + kPad) + column) =
        make_uint2(pair_of<T>(four.x, four.y), pair_of<T>(four.z, four.w));
  }
}

// Up to 8 kTiles rows of x by a warp's rows of the weight. out: of the warp's first row of the weight.
template <typename T, int kTiles>
__device__ void multiply_rows(const Weights& weights, const float* x, int64_t x_stride, int num_rows,
                              float (&sums)[kMostTiles][4], T* shared) {
  constexpr int kColumnsAtOnce = kColumns * kMostTiles / kTiles;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t own = lane % 4 * kVector;
  Step next;
  weights.load(own, next);
  for (int64_t begin = 0; begin < weights.columns; begin += kColumnsAtOnce) {
    __syncthreads();  // what was staged before has been used
    stage<T, kTiles>(x, x_stride, num_rows, weights.columns, begin, shared);
    __syncthreads();
    const int64_t end = min(weights.columns, begin + kColumnsAtOnce);
    for (int64_t column = begin; column < end; column += kStep) {
      const Step step = next;
      weights.load(column + kStep + own, next);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const uint4& upper = step.rows[0][v];
        const uint4& lower = step.rows[1][v];
        const unsigned left[2][4] = {{upper.x, lower.x, upper.y, lower.y}, {upper.z, lower.z, upper.w, lower.w}};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const uint4 right = *reinterpret_cast<const uint4*>(shared + (8 * tile + lane / 4) * (kColumnsAtOnce + kPad) +
                                                              (column - begin) + v * (4 * kVector) + own);
          multiply_16_8_16<T>(sums[tile], left[0], right.x, right.y);
          multiply_16_8_16<T>(sums[tile], left[1], right.z, right.w);
        }
      }
    }
  }
}

// Grid: (rows of a weight, groups).
template <typename T>
__global__ void __launch_bounds__(kThreads, 2) grouped_halves_kernel(GroupedRowsWork work) {
  begin_kernel();
  const auto group = static_cast<int>(blockIdx.y);
  const int64_t each = work.offsets == nullptr ? work.num_rows / work.num_groups : 0;
  const int64_t first = work.offsets == nullptr ? each * group : work.offsets[group];
  const int64_t end = work.offsets == nullptr ? first + each : work.offsets[group + 1];
  if (first >= end) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t first_n = (int64_t{blockIdx.x} * kWarps + warp) * kWeightRows + lane / 4;
  Weights weights;
  weights.columns = work.shape.columns;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t n = min(first_n + 8 * i, work.shape.rows - 1);  // what is there twice is stored nowhere
    weights.rows[i] = work.weights[group] + n * work.shape.row_bytes;
  }
  const float* x = work.x_group_stride == 0 ? work.x + first * work.x_stride : work.x + group * work.x_group_stride;
  float* out =
      work.out_group_stride == 0 ? work.out + first * work.out_stride : work.out + group * work.out_group_stride;
  const float* bias = work.bias == nullptr ? nullptr : work.bias + group * work.bias_stride;
  auto* shared = dynamic_shared<T>();
  for (int64_t m = 0; m < end - first; m += 8 * kMostTiles) {
    const auto rows = static_cast<int>(min(end - first - m, int64_t{8 * kMostTiles}));
    float sums[kMostTiles][4] = {};
    const float* some = x + m * work.x_stride;
    if (rows <= 8) {
      multiply_rows<T, 1>(weights, some, work.x_stride, rows, sums, shared);
    } else if (rows <= 16) {
      multiply_rows<T, 2>(weights, some, work.x_stride, rows, sums, shared);
    } else {
      multiply_rows<T, 4>(weights, some, work.x_stride, rows, sums, shared);
    }
#pragma unroll
    for (int tile = 0; tile < kMostTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 8 * tile + lane % 4 * 2 + i % 2;
        const int64_t n = first_n + 8 * (i / 2);
        if (row >= rows || n >= work.shape.rows) continue;
        out[(m + row) * work.out_stride + n] = sums[tile][i] + (bias == nullptr ? 0.0f : bias[n]);
      }
    }
  }
}

bool is_vector(const void* at, int64_t stride_bytes) {
  return reinterpret_cast<uintptr_t>(at) % 16 == 0 && stride_bytes % 16 == 0;
}

}  // namespace

bool has_grouped_halves(const GroupedRowsWork& work) {
  const StoredMatrix& shape = work.shape;
  return (shape.dtype == DType::kBF16 || shape.dtype == DType::kF16) && shape.columns % kVector == 0 &&
         shape.row_bytes % 16 == 0 && is_vector(work.x, work.x_stride * 4) && work.x_group_stride % 4 == 0;
}

void multiply_grouped_halves(const GroupedRowsWork& work, cudaStream_t stream) {
  if (work.num_rows == 0 || work.num_groups == 0 || work.shape.rows == 0) return;
  QUIRE_CHECK(has_grouped_halves(work));
  auto* kernel =
      work.shape.dtype == DType::kBF16 ? grouped_halves_kernel<__nv_bfloat16> : grouped_halves_kernel<__half>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
             "shared memory of grouped products");
  launch(kernel, dim3(ceil_div(work.shape.rows, kWarps * kWeightRows), static_cast<unsigned>(work.num_groups)),
         kThreads, kSharedBytes, stream, work);
}

}  // namespace quire::ops::cuda
