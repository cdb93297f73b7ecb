// Products of many rows with tensor cores, of groups with weights of their own: a prompt that goes through a mixture's
// experts. A block a tile of 64 rows of x and 64 of a weight; each step of 32 columns is rounded to what the tensor
// cores multiply, out of x in float32 and of the weight as it is stored, while the step before it is multiplied.
// Weights of F16 and BF16 are multiplied as they are, x rounded alike; blocks of few bits as TF32, with 10 bits of
// fraction.
#pragma once

#include <mma.h>

#include "ops/cuda/device.cuh"
#include "ops/cuda/grouped_tiles.h"
#include "ops/cuda/kv_values.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/row_tiles.cuh"
#include "ops/cuda/stored_formats.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kTile = 64;  // rows of x and rows of the weight
constexpr int kStep = 32;  // columns
constexpr int kThreads = 128;
constexpr int kWarpTile = 32;  // a warp has a quarter of the tile
constexpr int kFragment = 16;  // rows and columns of a fragment of the result
constexpr int kOutStride = kTile + 4;

// What the tensor cores multiply.
template <DType kType>
struct Factor {  // TF32
  using Stored = float;
  using Of = nvcuda::wmma::precision::tf32;
  static constexpr int kDepth = 8;
  static __device__ Stored rounded(float x) { return nvcuda::wmma::__float_to_tf32(x); }
};
template <>
struct Factor<DType::kF16> {
  using Stored = __half;
  using Of = __half;
  static constexpr int kDepth = 16;
  static __device__ Stored rounded(float x) { return __float2half_rn(x); }
};
template <>
struct Factor<DType::kBF16> {
  using Stored = __nv_bfloat16;
  using Of = __nv_bfloat16;
  static constexpr int kDepth = 16;
  static __device__ Stored rounded(float x) { return __float2bfloat16_rn(x); }
};

// What a thread brings of one step: 16 columns' worth of x, 4 of each of 4 rows, and 8 columns of 2 rows of the weight.
template <DType kType>
struct Pieces {
  static constexpr int kXRows = kTile * kStep / 4 / kThreads;
  static constexpr int kWeightRows = kTile * kStep / 8 / kThreads;
  float x[kXRows][4];
  float weight[kWeightRows][8];

  static __device__ int x_row(int i) { return static_cast<int>(threadIdx.x) / 8 + i * (kThreads / 8); }
  static __device__ int x_column() { return static_cast<int>(threadIdx.x) % 8 * 4; }
  static __device__ int weight_row(int i) { return static_cast<int>(threadIdx.x) / 4 + i * (kThreads / 4); }
  static __device__ int weight_column() { return static_cast<int>(threadIdx.x) % 4 * 8; }

  // rows: the tile's first; columns behind the last are zeros, as are rows.
  __device__ void load(const float* x_rows, int64_t x_stride, int32_t count, bool aligned, const uint8_t* weight_rows,
                       int64_t row_bytes, int64_t num_weights, int64_t columns, int64_t step) {
#pragma unroll
    for (int i = 0; i < kXRows; ++i) {
      const int64_t column = step + x_column();
      const float* from = x_rows + x_row(i) * x_stride + column;
      const bool there = x_row(i) < count;
      if (there && aligned && column + 4 <= columns) {
        const float4 quad = *reinterpret_cast<const float4*>(from);
        x[i][0] = quad.x;
        x[i][1] = quad.y;
        x[i][2] = quad.z;
        x[i][3] = quad.w;
        continue;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) x[i][j] = there && column + j < columns ? from[j] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kWeightRows; ++i) {
      const int64_t column = step + weight_column();
      if (weight_row(i) < num_weights && column < columns) {
        load_weights(weight_rows + weight_row(i) * row_bytes, columns, column, weight[i]);
        continue;
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) weight[i][j] = 0.0f;
    }
  }

  // A stored row begins at an address of 16.
  static __device__ void load_weights(const uint8_t* row, int64_t columns, int64_t column, float (&out)[8]) {
    if constexpr (kType == DType::kF16 || kType == DType::kBF16) {
      if (column + 8 <= columns) {
        const uint4 vector = *reinterpret_cast<const uint4*>(row + column * 2);
#pragma unroll
        for (int j = 0; j < 8; ++j) out[j] = number_of<kType>(vector, j);
        return;
      }
    }
    decode<kType>(row, columns, column, out);
  }

  __device__ void store(typename Factor<kType>::Stored* x_tile, typename Factor<kType>::Stored* weight_tile,
                        int stride) const {
#pragma unroll
    for (int i = 0; i < kXRows; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) x_tile[x_row(i) * stride + x_column() + j] = Factor<kType>::rounded(x[i][j]);
    }
#pragma unroll
    for (int i = 0; i < kWeightRows; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        weight_tile[weight_row(i) * stride + weight_column() + j] = Factor<kType>::rounded(weight[i][j]);
    }
  }
};

constexpr int kFragments = kWarpTile / kFragment;
template <DType kType>
using TileSums =
    nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, Factor<kType>::kDepth, float>[kFragments][kFragments];

// Of rows in shared memory.
template <DType kType>
constexpr int kTileStride = kStep + 16 / static_cast<int>(sizeof(typename Factor<kType>::Stored));

// One step: a warp's rows of x, from warp_row on, by its rows of the weight, from warp_column on.
template <DType kType>
__device__ __forceinline__ void multiply_step(const typename Factor<kType>::Stored* x_tile,
                                              const typename Factor<kType>::Stored* weight_tile, int warp_row,
                                              int warp_column, TileSums<kType>& sums) {
  namespace wmma = nvcuda::wmma;
  using Of = typename Factor<kType>::Of;
  constexpr int kDepth = Factor<kType>::kDepth;
  constexpr int kStride = kTileStride<kType>;
#pragma unroll
  for (int depth = 0; depth < kStep; depth += kDepth) {
    wmma::fragment<wmma::matrix_a, 16, 16, kDepth, Of, wmma::row_major> a[kFragments];
    wmma::fragment<wmma::matrix_b, 16, 16, kDepth, Of, wmma::col_major> b[kFragments];
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      wmma::load_matrix_sync(a[i], x_tile + (warp_row + i * kFragment) * kStride + depth, kStride);
      wmma::load_matrix_sync(b[i], weight_tile + (warp_column + i * kFragment) * kStride + depth, kStride);
    }
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
#pragma unroll
      for (int j = 0; j < kFragments; ++j) wmma::mma_sync(sums[i][j], a[i], b[j], sums[i][j]);
    }
  }
}

// Grid: (tiles of a weight's rows, tiles of x's rows).
template <DType kType>
__global__ void __launch_bounds__(kThreads) multiply_tile(GroupedRowsWork work, bool aligned) {
  begin_kernel();
  using Stored = typename Factor<kType>::Stored;
  namespace wmma = nvcuda::wmma;
  constexpr int kStride = kTileStride<kType>;
  constexpr int kTileBytes = kTile * kStride * static_cast<int>(sizeof(Stored));
  constexpr int kOutBytes = kTile * kOutStride * static_cast<int>(sizeof(float));
  __shared__ __align__(32) uint8_t shared[2 * kTileBytes > kOutBytes ? 2 * kTileBytes : kOutBytes];
  auto* x_tile = reinterpret_cast<Stored*>(shared);
  auto* weight_tile = reinterpret_cast<Stored*>(shared + kTileBytes);

  const RowTile tile = find_row_tile<kTile>(work, static_cast<int32_t>(blockIdx.y));
  if (tile.group < 0) return;
  const int64_t columns = work.shape.columns;
  const int64_t first_weight = int64_t{blockIdx.x} * kTile;
  const int64_t num_weights = work.shape.rows - first_weight;
  const int64_t group_row = work.x_group_stride == 0 ? int64_t{tile.before} + tile.first : tile.first;
  const float* x = work.x + tile.group * work.x_group_stride + group_row * work.x_stride;
  const uint8_t* weight = work.weights[tile.group] + first_weight * work.shape.row_bytes;

  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warp_row = warp / 2 * kWarpTile;
  const int warp_column = warp % 2 * kWarpTile;
  TileSums<kType> sums;
#pragma unroll
  for (auto& row : sums) {
#pragma unroll
    for (auto& sum : row) wmma::fill_fragment(sum, 0.0f);
  }
  Pieces<kType> pieces;
  pieces.load(x, work.x_stride, tile.count, aligned, weight, work.shape.row_bytes, num_weights, columns, 0);
  for (int64_t step = 0; step < columns; step += kStep) {
    __syncthreads();  // the step before has been multiplied
    pieces.store(x_tile, weight_tile, kStride);
    __syncthreads();
    if (step + kStep < columns) {
      pieces.load(x, work.x_stride, tile.count, aligned, weight, work.shape.row_bytes, num_weights, columns,
                  step + kStep);
    }
    multiply_step<kType>(x_tile, weight_tile, warp_row, warp_column, sums);
  }
  __syncthreads();
  auto* out_tile = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < kFragments; ++i) {
#pragma unroll
    for (int j = 0; j < kFragments; ++j) {
      wmma::store_matrix_sync(out_tile + (warp_row + i * kFragment) * kOutStride + warp_column + j * kFragment,
                              sums[i][j], kOutStride, wmma::mem_row_major);
    }
  }
  __syncthreads();
  const int64_t out_row = work.out_group_stride == 0 ? int64_t{tile.before} + tile.first : tile.first;
  float* out = work.out + tile.group * work.out_group_stride + out_row * work.out_stride + first_weight;
  const float* bias = work.bias == nullptr ? nullptr : work.bias + tile.group * work.bias_stride + first_weight;
  for (int i = static_cast<int>(threadIdx.x); i < tile.count * kTile; i += kThreads) {
    const int row = i / kTile;
    const int column = i % kTile;
    if (column >= num_weights) continue;
    const float sum = out_tile[row * kOutStride + column];
    out[row * work.out_stride + column] = bias == nullptr ? sum : sum + bias[column];
  }
}

}  // namespace

template <DType kType>
void multiply_tiles(const GroupedRowsWork& work, cudaStream_t stream) {
  const bool aligned = reinterpret_cast<uintptr_t>(work.x) % sizeof(float4) == 0 && work.x_stride % 4 == 0 &&
                       work.x_group_stride % 4 == 0;
  // So many at most: each group may have one that is not full.
  const int64_t tiles = work.num_rows / kTile + work.num_groups;
  launch(multiply_tile<kType>, dim3(ceil_div(work.shape.rows, kTile), static_cast<unsigned>(tiles)), dim3(kThreads), 0,
         stream, work, aligned);
}

}  // namespace quire::ops::cuda

// The products with weights of one format.
#define QUIRE_GROUPED_TILES(type) template void multiply_tiles<DType::type>(const GroupedRowsWork&, cudaStream_t);
