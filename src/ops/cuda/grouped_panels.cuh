// Grouped products of many rows by tensor cores of 16 bits: prompts that go through a mixture's experts. A block has a
// tile of 64 or 128 rows of x and 128 of a weight, both of which come to shared memory 64 columns at a time, the next
// while one is multiplied; a barrier a step. x comes rounded, and in asynchronous copies; so do weights of F16 and
// BF16. Of others a thread has a slice (weight_slices.cuh), whose codes arrive in registers and are decoded behind the
// product of the step before; x is put in the order of slices when it is rounded. A warp multiplies 32 rows of x by 32
// or 64 of the weight. Rows are 16 bytes longer than a step, so that the eight rows that a load takes lie in different
// banks.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/device.cuh"
#include "ops/cuda/grouped_tiles.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/row_in_range.cuh"
#include "ops/cuda/row_tiles.cuh"
#include "ops/cuda/slice_factors.cuh"

namespace quire::ops::cuda {

inline constexpr int kPanelWarps = 8;
inline constexpr int kPanelThreads = kPanelWarps * kWarp;
inline constexpr int kPanelWeights = 128;  // rows of the weight
inline constexpr int kPanelColumns = 64;   // of a step
inline constexpr int kPanelStride = kPanelColumns + 8;
inline constexpr int kPanelWarpRows = 32;

template <int kRows>
struct PanelShape {
  static constexpr int kRowWarps = kRows / kPanelWarpRows;
  static constexpr int kWarpWeights = kPanelWeights * kRowWarps / kPanelWarps;
  static constexpr int kXBytes = kRows * kPanelStride * 2;
  static constexpr int kStageBytes = kXBytes + kPanelWeights * kPanelStride * 2;
  static constexpr int kBytes = 2 * kStageBytes;
};

// Whether a weight is multiplied as it lies in memory.
constexpr bool is_whole(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16;
}

// Columns of a rounded row: of slices of 32 values, whole steps.
template <DType kType>
__host__ __device__ int64_t rounded_columns(int64_t columns) {
  if (is_whole(kType)) return columns;
  const int64_t steps = (Slice<kType>::num_slices(static_cast<int>(columns)) + 1) / 2;
  return steps * kPanelColumns;
}

// x in the order of a weight's slices, quad by quad; zeros where those lie behind a row's end. A block a row.
template <DType kType>
__global__ void __launch_bounds__(kPanelThreads)
    round_in_slices_kernel(Rows x, RowPlaces places, int64_t columns, uint2* rounded, float* factors) {
  begin_kernel();
  using Factors = SliceFactors<kType>;
  using T = typename Factors::Of;
  constexpr int kKept = 4;
  const int64_t row = blockIdx.x;
  const auto num_quads = static_cast<int>(rounded_columns<kType>(columns) / 4);
  uint2* to = rounded + row * num_quads;
  for_quads_in_range<kPanelThreads, kKept>(
      x, places.stride, places.at(row), columns, num_quads, factors + row, [&](int quad, const float4& v) {
        const QuadPlace place = Slice<kType>::place_of(quad);
        to[place.slice * 8 + place.quad] = Factors::kEvenFirst ? make_uint2(pair_of<T>(v.x, v.z), pair_of<T>(v.y, v.w))
                                                               : make_uint2(pair_of<T>(v.x, v.y), pair_of<T>(v.z, v.w));
      });
}

// Rows of a tile: `count` of them are there, `stride` bytes apart; zeros behind the last and behind the last column.
template <int kRows>
__device__ void begin_rows(const uint8_t* rows, int64_t stride, int64_t count, int64_t columns, int64_t column,
                           uint8_t* to) {
  constexpr int kVectors = kPanelColumns / 8;  // of a row
#pragma unroll
  for (int i = 0; i < kRows * kVectors / kPanelThreads; ++i) {
    const int at = i * kPanelThreads + static_cast<int>(threadIdx.x);
    const int row = at / kVectors;
    const int offset = at % kVectors * 8;
    uint8_t* vector = to + (row * kPanelStride + offset) * 2;
    if (row < count && column + offset < columns) {
      __pipeline_memcpy_async(vector, rows + row * stride + (column + offset) * 2, 16);
    } else {
      *reinterpret_cast<uint4*>(vector) = make_uint4(0, 0, 0, 0);
    }
  }
}

// A step of a weight: copied, or a slice of a thread.
template <DType kType>
struct WeightStep {
  using Lanes = Slice<kType>;
  typename Lanes::Raw raw;

  // rows: of the tile; `count` of them are there.
  __device__ void begin(const uint8_t* rows, const StoredMatrix& shape, int64_t count, int64_t column, uint8_t* to) {
    if constexpr (is_whole(kType)) {
      begin_rows<kPanelWeights>(rows, shape.row_bytes, count, shape.columns, column, to);
    } else {
      const int row = static_cast<int>(threadIdx.x) / 2;
      const uint8_t* from = rows + (row < count ? row : count - 1) * shape.row_bytes;
      Lanes::load(from, slice_at(column), static_cast<int>(shape.columns), raw);
    }
  }
  __device__ void finish(int64_t columns, int64_t column, uint8_t* to) const {
    if constexpr (!is_whole(kType)) {
      const SliceFactors<kType> factors(raw, slice_at(column), static_cast<int>(columns));
      auto* vectors = reinterpret_cast<uint4*>(
          to + (static_cast<int>(threadIdx.x) / 2 * kPanelStride + static_cast<int>(threadIdx.x) % 2 * 32) * 2);
      static_assert(is_whole(kType) || (Lanes::kQuads == 8 && 2 * kPanelWeights == kPanelThreads));
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        uint4 vector;
        factors.quad(j, vector.x, vector.y);
        factors.quad(j + 1, vector.z, vector.w);
        vectors[j / 2] = vector;
      }
    }
  }

 private:
  static __device__ int slice_at(int64_t column) {
    return static_cast<int>(column / 32) + static_cast<int>(threadIdx.x) % 2;
  }
};

template <typename T, int kRows>
__device__ void multiply_panels_step(const uint8_t* x, const uint8_t* weight, int lane,
                                     float (&sums)[2][PanelShape<kRows>::kWarpWeights / 8][4]) {
#pragma unroll
  for (int k = 0; k < kPanelColumns; k += 16) {
    unsigned left[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      load_matrices<false>(left[i], x + ((i * 16 + lane % 16) * kPanelStride + k + lane / 16 * 8) * 2);
#pragma unroll
    for (int n = 0; n < PanelShape<kRows>::kWarpWeights / 16; ++n) {
      unsigned right[4];
      load_matrices<false>(right,
                           weight + ((n * 16 + lane / 16 * 8 + lane % 8) * kPanelStride + k + lane / 8 % 2 * 8) * 2);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        multiply_16_8_16<T>(sums[i][2 * n], left[i], right[0], right[1]);
        multiply_16_8_16<T>(sums[i][2 * n + 1], left[i], right[2], right[3]);
      }
    }
  }
}

// Rounded rows of x, which follow each other: those of a window of all groups' rows.
struct PanelRows {
  const uint8_t* x;
  const float* factors;  // that sums of rows are multiplied by, or nullptr
  RowWindow window;
};

// Grid: (tiles of a weight's rows, tiles of the window's rows).
template <DType kType, int kRows>
__global__ void __launch_bounds__(kPanelThreads, 2) multiply_panels_kernel(GroupedRowsWork work, PanelRows panel) {
  using S = PanelShape<kRows>;
  using T = typename SliceFactors<kType>::Of;
  begin_kernel();
  const RowTile tile = find_row_tile<kRows>(work, static_cast<int32_t>(blockIdx.y), panel.window);
  if (tile.group < 0) return;
  const int64_t columns = rounded_columns<kType>(work.shape.columns);
  const int64_t first_weight = int64_t{blockIdx.x} * kPanelWeights;
  const uint8_t* weight = work.weights[tile.group] + first_weight * work.shape.row_bytes;
  const int64_t first_row = int64_t{tile.before} + tile.first;
  const int64_t in_window = first_row - panel.window.first;
  const uint8_t* x = panel.x + in_window * columns * 2;
  auto* shared = dynamic_shared<uint8_t>();
  WeightStep<kType> step;
  const auto begin_step = [&](int64_t column, uint8_t* stage) {
    begin_rows<kRows>(x, columns * 2, tile.count, columns, column, stage);
    step.begin(weight, work.shape, work.shape.rows - first_weight, column, stage + S::kXBytes);
    __pipeline_commit();
  };
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warp_row = warp % S::kRowWarps * kPanelWarpRows;
  const int warp_weight = warp / S::kRowWarps * S::kWarpWeights;
  float sums[2][S::kWarpWeights / 8][4] = {};
  begin_step(0, shared);
  step.finish(work.shape.columns, 0, shared + S::kXBytes);
  int turn = 0;
  for (int64_t column = 0; column < columns; column += kPanelColumns, turn = 1 - turn) {
    __pipeline_wait_prior(0);
    __syncthreads();  // the step is there for all, and the one before it has been multiplied
    const uint8_t* stage = shared + turn * S::kStageBytes;
    uint8_t* next = shared + (1 - turn) * S::kStageBytes;
    const bool goes_on = column + kPanelColumns < columns;
    if (goes_on) begin_step(column + kPanelColumns, next);
    multiply_panels_step<T, kRows>(stage + warp_row * kPanelStride * 2,
                                   stage + S::kXBytes + warp_weight * kPanelStride * 2, lane, sums);
    if (goes_on) step.finish(work.shape.columns, column + kPanelColumns, next + S::kXBytes);
  }
  const int64_t out_row = work.out_group_stride == 0 ? first_row : tile.first;
  float* out = work.out + tile.group * work.out_group_stride + out_row * work.out_stride;
  const float* bias = work.bias == nullptr ? nullptr : work.bias + tile.group * work.bias_stride;
  float* to[4];  // of the lane's rows, nullptr: there is none
  float of_row[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = warp_row + i * 8 + lane / 4;
    const bool there = row < tile.count;
    to[i] = there ? out + row * work.out_stride : nullptr;
    of_row[i] = there && panel.factors != nullptr ? panel.factors[in_window + row] : 1.0f;
  }
#pragma unroll
  for (int n = 0; n < S::kWarpWeights / 8; ++n) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int64_t at = first_weight + warp_weight + n * 8 + lane % 4 * 2 + k;
      if (at >= work.shape.rows) break;
      const float added = bias == nullptr ? 0.0f : bias[at];
      float scale = 1;
      if constexpr (kType == DType::kF8E4M3)
        scale = load_float(weight + (at - first_weight) * work.shape.row_bytes + work.shape.columns);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (to[i] != nullptr) to[i][at] = fmaf(sums[i / 2][n][i % 2 * 2 + k] * scale, of_row[i], added);
      }
    }
  }
}

template <DType kType>
bool multiply_panels(const GroupedRowsWork& work, void* scratch, int64_t scratch_bytes, cudaStream_t stream) {
  const int64_t columns = work.shape.columns;
  const int64_t row_size = rounded_columns<kType>(columns) * 2;
  if (is_whole(kType) && columns % 8 != 0) return false;
  RowPlaces places = {.stride = work.x_stride};
  int64_t most = scratch_bytes / (row_size + int64_t{sizeof(float)});  // rows at once
  if (work.x_group_stride != 0) {
    // Heads that lie beside each other come to lie below each other, as many rows each.
    if (work.offsets != nullptr || work.x_group_stride % 4 != 0 || most < work.num_rows) return false;
    places.each = work.num_rows / work.num_groups;
    places.group_stride = work.x_group_stride;
  }
  if (most == 0) return false;
  auto* x = static_cast<uint8_t*>(scratch);
  for (int64_t first = 0; first < work.num_rows; first += most) {
    const int64_t count = std::min(most, work.num_rows - first);
    const float* from = work.x + first * work.x_stride;  // of groups first is 0
    float* factors = nullptr;
    if constexpr (is_whole(kType)) {
      round_rows(from, places, count, columns, kType, x, stream);
    } else {
      factors = reinterpret_cast<float*>(x + count * row_size);
      launch(round_in_slices_kernel<kType>, static_cast<unsigned>(count), kPanelThreads, 0, stream, Rows(from), places,
             columns, reinterpret_cast<uint2*>(x), factors);
    }
    const PanelRows panel = {x, factors, {static_cast<int32_t>(first), static_cast<int32_t>(count)}};
    with_tile_rows(work, [&](auto rows) {
      launch_row_tiles<rows.value>(multiply_panels_kernel<kType, rows.value>, work, panel,
                                   {kPanelWeights, kPanelThreads, PanelShape<rows.value>::kBytes}, stream);
    });
  }
  return true;
}

}  // namespace quire::ops::cuda

// The products with weights of one format.
#define QUIRE_GROUPED_PANELS(name) \
  template bool multiply_panels<DType::name>(const GroupedRowsWork&, void*, int64_t, cudaStream_t);
