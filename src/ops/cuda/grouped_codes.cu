// Grouped products of 8-bit floats by Hopper's tensor cores: prompts that go through experts of FP8. x is rounded to
// codes with a scale a row or, as the weight, one for every 128 columns. A block has 128 rows of a weight, on the left,
// and 64 or 128 rows of x, on the right; both come to shared memory 128 columns at a time by asynchronous copies, two
// steps ahead. A warpgroup multiplies 64 rows of the weight. Where scales are of columns the sums of a step are
// registers of their own, multiplied and added while the tensor cores are at the next.
//
// Other cards have panels of 16 bits (grouped_panels.cuh): what PTX calls a product of 8 bits by a warp is one of
// halves on Hopper, and has a unit of its own on 8.9 and 12.0 alone.
#include <cuda_pipeline_primitives.h>

#include <algorithm>

#include "ops/cuda/device.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/row_tiles.cuh"
#include "ops/cuda/warpgroup_products.cuh"
#include "ops/quantise.h"

namespace quire::ops::cuda {
namespace {

constexpr int kThreads = 2 * kWarpgroup;
constexpr int kWeightRows = 128;
constexpr int kRowsAWarpgroup = 64;
constexpr int kStep = kSwizzledBytes;  // columns, a byte each
constexpr int kVector = 16;
constexpr int kAhead = 2;            // steps
constexpr int kStages = kAhead + 2;  // of the others one is multiplied and one scaled
static_assert(kStep == kScaleColumns && kWeightRows == 2 * kRowsAWarpgroup);

// Rows of x as codes, below each other; of a window of all groups' rows.
struct CodedX {
  const uint8_t* codes;
  const float* scales;  // [num_rows], or [columns / kScaleColumns, num_rows]
  RowWindow window;
};

template <int kRows>
struct Stage {
  static constexpr int kTileBytes = (kWeightRows + kRows) * kStep;
  static constexpr int kScales = kWeightRows + kRows;
  static constexpr int kBytes = kSwizzledAlign + kStages * (kTileBytes + kScales * static_cast<int>(sizeof(float)));
};

#if QUIRE_HAS_WARPGROUPS

// The place of a tile's first row in x.
__device__ int64_t place_of(const RowTile& tile, const CodedX& x) {
  return int64_t{tile.before} + tile.first - x.window.first;
}

// What a block multiplies.
template <int kRows, bool kBlocks>
struct Tile {
  using S = Stage<kRows>;
  static constexpr int kVectors = kStep / kVector;  // of a row
  static constexpr int kRowsAtOnce = kThreads / kVectors;

  int columns;
  // What a thread copies of the first step: of its first row of the weight and of x, and its scale.
  const uint8_t* weight;
  const uint8_t* x;
  const uint8_t* scale;
  int64_t weight_stride;  // between its rows, bytes
  int64_t x_stride;
  int64_t scale_stride;  // between steps, bytes
  int num_weights;       // rows of the tile that are there
  int num_rows;
  uint8_t* tiles;        // shared memory, [kStages, kTileBytes]: rows of the weight, then of x
  float* stages_scales;  // [kStages, kScales]

  // Rows of x from the tile's on by rows of the weight from `first` on.
  __device__ Tile(const GroupedRowsWork& work, const CodedX& coded, const RowTile& rows, int64_t first)
      : columns(static_cast<int>(work.shape.columns)),
        weight_stride(kRowsAtOnce * work.shape.row_bytes),
        x_stride(kRowsAtOnce * work.shape.columns),
        num_weights(static_cast<int>(min(int64_t{kWeightRows}, work.shape.rows - first))),
        num_rows(rows.count) {
    const uint8_t* first_weight = work.weights[rows.group] + first * work.shape.row_bytes;
    const int64_t in_x = place_of(rows, coded);
    const auto thread = static_cast<int>(threadIdx.x);
    const int row = thread / kVectors;
    const int vector = thread % kVectors * kVector;
    weight = first_weight + row * work.shape.row_bytes + vector;
    x = coded.codes + (in_x + row) * work.shape.columns + vector;
    if (thread < kWeightRows) {
      scale = first_weight + thread * work.shape.row_bytes + work.shape.columns;
      scale_stride = sizeof(float);
    } else {
      scale = reinterpret_cast<const uint8_t*>(coded.scales + in_x + (thread - kWeightRows));
      scale_stride = coded.window.count * int64_t{sizeof(float)};
    }
    auto* shared = dynamic_shared<uint8_t>();
    const auto past = static_cast<unsigned>(reinterpret_cast<uintptr_t>(shared)) % kSwizzledAlign;
    tiles = shared + (kSwizzledAlign - past) % kSwizzledAlign;
    stages_scales = reinterpret_cast<float*>(tiles + kStages * S::kTileBytes);
  }

  __device__ uint8_t* tile(int step) const { return tiles + step % kStages * S::kTileBytes; }
  __device__ float* scales_of(int step) const { return stages_scales + step % kStages * S::kScales; }

  // A thread copies a vector of every kRowsAtOnce-th row. Rows that are not there are whatever shared memory has: their
  // sums are stored nowhere.
  __device__ void begin(int step) const {
    const auto thread = static_cast<int>(threadIdx.x);
    const int row = thread / kVectors;
    const int64_t column = int64_t{step} * kStep;
    // Scales of columns have whole steps; else there are zeros behind a row's end.
    const bool there = kBlocks || column + thread % kVectors * kVector < columns;
    uint8_t* to = tile(step) + swizzled(row, thread % kVectors);
#pragma unroll
    for (int i = 0; i < kWeightRows / kRowsAtOnce; ++i) {
      if (row + i * kRowsAtOnce < num_weights)
        copy(to + i * kRowsAtOnce * kStep, weight + column + i * weight_stride, there);
    }
    to += kWeightRows * kStep;
#pragma unroll
    for (int i = 0; i < kRows / kRowsAtOnce; ++i) {
      if (row + i * kRowsAtOnce < num_rows) copy(to + i * kRowsAtOnce * kStep, x + column + i * x_stride, there);
    }
    if constexpr (kBlocks) {
      if (thread < kWeightRows ? thread < num_weights : thread - kWeightRows < num_rows)
        __pipeline_memcpy_async(scales_of(step) + thread, scale + step * scale_stride, sizeof(float));
    }
  }
  static __device__ void copy(uint8_t* to, const uint8_t* from, bool there) {
    if (there) {
      __pipeline_memcpy_async(to, from, kVector);
    } else {
      *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
    }
  }

  // This thread's warpgroup; `adds`: from the first product on.
  __device__ void multiply(int step, float (&sums)[kRows / 2], bool adds) const {
    const uint8_t* left = tile(step) + static_cast<int>(threadIdx.x) / kWarpgroup * kRowsAWarpgroup * kStep;
    const uint8_t* right = tile(step) + kWeightRows * kStep;
    begin_products();
#pragma unroll
    for (int k = 0; k < kStep; k += kCodesAtOnce)
      multiply_64_n_32<kRows>(sums, left + k, right + k, adds || k > 0 ? 1 : 0);
    commit_products();
  }

  // A step's sums times their scales.
  __device__ void add_scaled(int step, const float (&part)[kRows / 2], float (&sums)[kRows / 2]) const {
    const auto thread = static_cast<int>(threadIdx.x);
    const float* own = scales_of(step) + thread / kWarp * 16 + thread % kWarp / 4;
    const float* of_x = scales_of(step) + kWeightRows + thread % 4 * 2;
    const float upper = own[0];
    const float lower = own[8];
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) {
      const float2 two = *reinterpret_cast<const float2*>(of_x + n * 8);
      sums[4 * n] = fmaf(part[4 * n] * upper, two.x, sums[4 * n]);
      sums[4 * n + 1] = fmaf(part[4 * n + 1] * upper, two.y, sums[4 * n + 1]);
      sums[4 * n + 2] = fmaf(part[4 * n + 2] * lower, two.x, sums[4 * n + 2]);
      sums[4 * n + 3] = fmaf(part[4 * n + 3] * lower, two.y, sums[4 * n + 3]);
    }
  }

  // Waits until step `step` is there for all, and lets the one kAhead further begin.
  __device__ void arrive(int step, int num_steps) const {
    __pipeline_wait_prior(kAhead - 1);
    show_to_products();
    __syncthreads();  // all are done with the step two before it
    if (step + kAhead < num_steps) begin(step + kAhead);
    __pipeline_commit();
  }

  // The sums of step `step` - 1 are scaled while `step` is multiplied.
  __device__ void turn(int step, int num_steps, float (&before)[kRows / 2], float (&part)[kRows / 2],
                       float (&sums)[kRows / 2]) const {
    arrive(step, num_steps);
    multiply(step, part, false);
    wait_for_products<1>();
    hold(before);
    add_scaled(step - 1, before, sums);
  }

  __device__ void multiply_all(float (&sums)[kRows / 2]) const {
    const int num_steps = (columns + kStep - 1) / kStep;
    for (int step = 0; step < kAhead; ++step) {
      if (step < num_steps) begin(step);
      __pipeline_commit();
    }
    if constexpr (kBlocks) {
      float even[kRows / 2];
      float odd[kRows / 2];
      arrive(0, num_steps);
      multiply(0, even, false);
      int step = 1;
      for (; step + 1 < num_steps; step += 2) {
        turn(step, num_steps, even, odd, sums);
        turn(step + 1, num_steps, odd, even, sums);
      }
      if (step < num_steps) {
        turn(step, num_steps, even, odd, sums);
        wait_for_products<0>();
        hold(odd);
        add_scaled(step, odd, sums);
      } else {
        wait_for_products<0>();
        hold(even);
        add_scaled(step - 1, even, sums);
      }
    } else {
      for (int step = 0; step < num_steps; ++step) {
        arrive(step, num_steps);
        multiply(step, sums, step > 0);
        wait_for_products<1>();
      }
      wait_for_products<0>();
      hold(sums);
    }
    __pipeline_wait_prior(0);
  }
};

// Stores the sums of a tile. of_row: scales of the tile's rows of x, or nullptr.
template <int kRows>
__device__ void store_tile(const GroupedRowsWork& work, const RowTile& tile, int64_t first_weight, const float* of_row,
                           const float (&sums)[kRows / 2]) {
  const auto thread = static_cast<int>(threadIdx.x);
  float* out = work.out + (int64_t{tile.before} + tile.first) * work.out_stride;
  const float* bias = work.bias == nullptr ? nullptr : work.bias + tile.group * work.bias_stride;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t at = first_weight + thread / kWarp * 16 + thread % kWarp / 4 + 8 * i;
    if (at >= work.shape.rows) break;
    const float added = bias == nullptr ? 0.0f : bias[at];
    float scale = 1;
    if (of_row != nullptr) {
      const uint8_t* row = work.weights[tile.group] + at * work.shape.row_bytes;
      scale = *reinterpret_cast<const float*>(row + work.shape.columns);
    }
#pragma unroll
    for (int n = 0; n < kRows / 4; ++n) {
      const int row = n / 2 * 8 + thread % 4 * 2 + n % 2;
      if (row >= tile.count) continue;
      const float sum = sums[n / 2 * 4 + i * 2 + n % 2];
      out[row * work.out_stride + at] = fmaf(sum * scale, of_row == nullptr ? 1.0f : of_row[row], added);
    }
  }
}

#endif  // QUIRE_HAS_WARPGROUPS

// Grid: (tiles of a weight's rows, tiles of the window's rows of x).
template <int kRows, bool kBlocks>
__global__ void __launch_bounds__(kThreads) multiply_codes_kernel(GroupedRowsWork work, CodedX x) {
  begin_kernel();
#if QUIRE_HAS_WARPGROUPS
  const RowTile tile = find_row_tile<kRows>(work, static_cast<int32_t>(blockIdx.y), x.window);
  if (tile.group < 0) return;
  const int64_t first_weight = int64_t{blockIdx.x} * kWeightRows;
  const Tile<kRows, kBlocks> block(work, x, tile, first_weight);
  float sums[kRows / 2] = {};
  block.multiply_all(sums);
  store_tile<kRows>(work, tile, first_weight, kBlocks ? nullptr : x.scales + place_of(tile, x), sums);
#endif
}

template <int kRows>
void launch_codes(const GroupedRowsWork& work, const CodedX& x, cudaStream_t stream) {
  auto* kernel =
      work.shape.dtype == DType::kF8E4M3_128 ? multiply_codes_kernel<kRows, true> : multiply_codes_kernel<kRows, false>;
  launch_row_tiles<kRows>(kernel, work, x, {kWeightRows, kThreads, Stage<kRows>::kBytes}, stream);
}

}  // namespace

bool multiply_grouped_codes(const GroupedRowsWork& work, void* scratch, int64_t scratch_bytes, cudaStream_t stream) {
  const StoredMatrix& shape = work.shape;
  const bool blocks = shape.dtype == DType::kF8E4M3_128;
  if (!blocks && shape.dtype != DType::kF8E4M3) return false;
  if (shape.columns % (blocks ? kScaleColumns : kVector) != 0 || shape.columns > INT32_MAX / kWeightRows) return false;
  if (work.x_group_stride != 0 || work.out_group_stride != 0 || !runs_hopper_code()) return false;
  if (work.num_rows == 0 || work.num_groups == 0 || shape.rows == 0) return true;
  const int64_t most = scratch_bytes / quantised_row_bytes(shape.dtype, shape.columns);
  if (most == 0) return false;
  auto* codes = static_cast<uint8_t*>(scratch);
  for (int64_t first = 0; first < work.num_rows; first += most) {
    const int64_t count = std::min(most, work.num_rows - first);
    auto* scales = reinterpret_cast<float*>(codes + count * shape.columns);
    const Rows from(work.x + first * work.x_stride);
    if (blocks) {
      round_blocks_to_f8(from, work.x_stride, count, count, shape.columns, codes, scales, stream);
    } else {
      round_rows_to_f8(from, work.x_stride, count, shape.columns, codes, shape.columns, scales, stream);
    }
    const CodedX x = {codes, scales, {static_cast<int32_t>(first), static_cast<int32_t>(count)}};
    with_tile_rows(work, [&](auto rows) { launch_codes<rows.value>(work, x, stream); });
  }
  return true;
}

}  // namespace quire::ops::cuda
