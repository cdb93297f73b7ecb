// Products of some rows of x, up to 64 at a time, by tensor cores: each code of the weight is decoded once, into the
// registers that multiply, and used for all of these rows. What is multiplied by what is the other way round than in a
// matrix product of many rows: the weight's rows are those of the tensor cores' left matrix, of which a lane has two
// rows and four columns. Which columns is free as long as x has the same, and so they are a quad of a lane's slice
// (weight_slices.cuh): the lanes load rows as they are stored, 4 slices of 8 rows a warp, and no code passes through
// shared memory.
//
// x is rounded and put in the order in which lanes ask for it once for all blocks (stage_rows_kernel), and comes to
// shared memory in copies of whole pieces, the next of which is under way while one is used; a barrier a piece. Warps
// share the block's rows of the weight, and where those are few its columns too; so do blocks, whose sums a second
// kernel adds in order. x has F16's range: rows beyond it are divided by a power of two and the sums multiplied by it.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/decoded_tiles.h"
#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/row_in_range.cuh"
#include "ops/cuda/slice_factors.cuh"

namespace quire::ops::cuda {

inline constexpr int kDecodedWarps = 8;  // of a block
inline constexpr int kDecodedThreads = kDecodedWarps * kWarp;
inline constexpr int kStageThreads = 512;           // of a row of x
inline constexpr int64_t kDecodedBlocks = 132 * 2;  // that run at once

struct DecodedArgs {
  StoredMatrix weight;
  const uint4* x = nullptr;        // staged
  const float* factors = nullptr;  // [num_rows] or nullptr
  const float* bias = nullptr;     // or nullptr
  int64_t num_rows = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int64_t split_stride = 0;  // of out
  int split_pieces = 0;      // of a split
};

// How a kernel goes through a weight of a format: a step is four slices of each row, a piece what is copied together.
template <DType kType, int kRowTiles_>
struct DecodedShape {
  static constexpr int kRowTiles = kRowTiles_;  // of 8 rows of x
  static constexpr int kRows = kRowTiles * static_cast<int>(kRowsOfTile);
  // Of 16 rows of the weight, of a warp; codes that become floats on their way leave registers for one.
  static constexpr int kWeightTiles = kRowTiles == 2 && kType != DType::kQ5_K && kType != DType::kQ6_K ? 2 : 1;
  static constexpr int kRowWarps = kRowTiles == 8 ? 8 : 4;       // that have rows of the weight of their own
  static constexpr int kDepthWarps = kDecodedWarps / kRowWarps;  // that share those rows' columns
  static constexpr int kWeightRows = kRowWarps * kWeightTiles * 16;
  static constexpr int kQuads = Slice<kType>::kQuads;
  static constexpr int kStepVectors = kQuads / 2 * kRows * 4;                         // 16 bytes each, of staged x
  static constexpr int kSteps = kQuads >= 8 ? (kRowTiles == 2 ? 2 : 1) : 8 / kQuads;  // of a warp in a piece
  static constexpr int kPieceSteps = kDepthWarps * kSteps;
  static constexpr int kPieceVectors = kPieceSteps * kStepVectors;
  static constexpr int kSums = kWeightTiles * kRowTiles * 4;  // of a lane
  static constexpr int kSumBytes = (kDepthWarps - 1) * kRowWarps * kSums * kWarp * 4;
  static constexpr int kSharedBytes = kSumBytes > 2 * kPieceVectors * 16 ? kSumBytes : 2 * kPieceVectors * 16;
  static_assert(kQuads % 2 == 0 && kSharedBytes <= 48 << 10);

  static __host__ __device__ int num_steps(int64_t columns) {
    return (Slice<kType>::num_slices(static_cast<int>(columns)) + 3) / 4;
  }
};

// x as the kernels read it: of batches of kRows rows and of steps, for each two quads of all rows 4 vectors a row,
// those of the step's slices. Zeros behind a row's end and behind the last row. A block a row.
template <DType kType, int kRowTiles>
__global__ void __launch_bounds__(kStageThreads)
    stage_rows_kernel(Rows x, int64_t x_stride, int64_t num_rows, int64_t columns, uint2* staged, float* factors) {
  using Shape = DecodedShape<kType, kRowTiles>;
  using Factors = SliceFactors<kType>;
  using T = typename Factors::Of;
  begin_kernel();
  constexpr int kKept = 8;
  const int64_t row = blockIdx.x;
  const bool there = row < num_rows;
  const int num_steps = Shape::num_steps(columns);
  float* factor = there && std::is_same_v<T, __half> ? factors + row : nullptr;
  for_quads_in_range<kStageThreads, kKept>(
      x, x_stride, row * x_stride, there ? columns : 0, num_steps * 4 * Shape::kQuads, factor,
      [&](int quad, const float4& v) {
        const QuadPlace place = Slice<kType>::place_of(quad);
        const int64_t step = row / Shape::kRows * num_steps + place.slice / 4;
        const int64_t at = ((step * (Shape::kQuads / 2) + place.quad / 2) * Shape::kRows + row % Shape::kRows) * 4;
        staged[(at + place.slice % 4) * 2 + place.quad % 2] =
            Factors::kEvenFirst ? make_uint2(pair_of<T>(v.x, v.z), pair_of<T>(v.y, v.w))
                                : make_uint2(pair_of<T>(v.x, v.y), pair_of<T>(v.z, v.w));
      });
}

// Begins to copy piece `piece` of a batch's `num_steps` steps.
template <typename Shape>
__device__ void begin_piece(const uint4* x, int piece, int num_steps, uint4* to) {
  const uint4* from = x + int64_t{piece} * Shape::kPieceVectors;
  const int left = (num_steps - piece * Shape::kPieceSteps) * Shape::kStepVectors;
  const int count = left < Shape::kPieceVectors ? left : Shape::kPieceVectors;
#pragma unroll
  for (int i = 0; i < Shape::kPieceVectors; i += kDecodedThreads) {
    const int at = i + static_cast<int>(threadIdx.x);
    if (at < count) __pipeline_memcpy_async(to + at, from + at, sizeof(uint4));
  }
  __pipeline_commit();
}

// One step: the weight's slices by x of that step.
template <DType kType, typename Shape>
__device__ void multiply_decoded_step(const SliceFactors<kType> (&factors)[2 * Shape::kWeightTiles], const uint4* x,
                                      int lane, float (&sums)[Shape::kWeightTiles][Shape::kRowTiles][4]) {
  using T = typename SliceFactors<kType>::Of;
#pragma unroll
  for (int j = 0; j < Shape::kQuads; j += 2) {
    unsigned left[Shape::kWeightTiles][2][4];
#pragma unroll
    for (int t = 0; t < Shape::kWeightTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        factors[2 * t].quad(j + i, left[t][i][0], left[t][i][2]);
        factors[2 * t + 1].quad(j + i, left[t][i][1], left[t][i][3]);
      }
    }
#pragma unroll
    for (int n = 0; n < Shape::kRowTiles; ++n) {
      const uint4 right = x[(j / 2 * Shape::kRowTiles + n) * kWarp + lane];
#pragma unroll
      for (int t = 0; t < Shape::kWeightTiles; ++t) {
        multiply_16_8_16<T>(sums[t][n], left[t][0], right.x, right.y);
        multiply_16_8_16<T>(sums[t][n], left[t][1], right.z, right.w);
      }
    }
  }
}

// What the warps of the same rows have summed comes to the first of them.
template <typename Shape>
__device__ void gather_sums(int row_warp, int depth_warp, int lane,
                            float (&sums)[Shape::kWeightTiles][Shape::kRowTiles][4]) {
  if constexpr (Shape::kDepthWarps > 1) {
    auto* shared = dynamic_shared<float>();
    const auto place = [&](int depth, int t, int n, int i) -> float& {
      const int sum = (t * Shape::kRowTiles + n) * 4 + i;
      return shared[(((depth - 1) * Shape::kRowWarps + row_warp) * Shape::kSums + sum) * kWarp + lane];
    };
    __syncthreads();  // x has been used
#pragma unroll
    for (int depth = 1; depth < Shape::kDepthWarps; ++depth) {
#pragma unroll
      for (int t = 0; t < Shape::kWeightTiles; ++t) {
#pragma unroll
        for (int n = 0; n < Shape::kRowTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (depth_warp == depth) place(depth, t, n, i) = sums[t][n][i];
          }
        }
      }
    }
    __syncthreads();
    if (depth_warp > 0) return;
#pragma unroll
    for (int depth = 1; depth < Shape::kDepthWarps; ++depth) {
#pragma unroll
      for (int t = 0; t < Shape::kWeightTiles; ++t) {
#pragma unroll
        for (int n = 0; n < Shape::kRowTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[t][n][i] += place(depth, t, n, i);
        }
      }
    }
  }
}

// The sums of a lane -> memory, by the factors of x's rows and of the weight's, with what is added to a row's outputs.
// first_row: of the lane's rows of the weight, `rows`.
template <DType kType, typename Shape>
__device__ __forceinline__ void write_sums(const DecodedArgs& args, int64_t first_row,
                                           const uint8_t* const (&rows)[2 * Shape::kWeightTiles], int lane,
                                           const float (&sums)[Shape::kWeightTiles][Shape::kRowTiles][4]) {
  const int first_m = static_cast<int>(blockIdx.y) * Shape::kRows + lane % 4 * 2;
  const int left = static_cast<int>(args.num_rows) - first_m;  // rows of x from the lane's first on
  float* to = args.out + blockIdx.z * args.split_stride + first_m * args.out_stride;
  float factors[Shape::kRowTiles][2];
#pragma unroll
  for (int tile = 0; tile < Shape::kRowTiles; ++tile) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      factors[tile][k] = 1;
      if (args.factors != nullptr && 8 * tile + k < left) factors[tile][k] = args.factors[first_m + 8 * tile + k];
    }
  }
#pragma unroll
  for (int i = 0; i < 2 * Shape::kWeightTiles; ++i) {
    const int64_t n = first_row + 8 * i;
    if (n >= args.weight.rows) break;
    float scale = 1;
    if constexpr (kType == DType::kF8E4M3) scale = load_float(rows[i] + static_cast<int>(args.weight.columns));
    const float bias = args.bias == nullptr ? 0.0f : args.bias[n];
    float* at = to + n;
#pragma unroll
    for (int tile = 0; tile < Shape::kRowTiles; ++tile) {
      const float first = fmaf(sums[i / 2][tile][i % 2 * 2] * scale, factors[tile][0], bias);
      const float second = fmaf(sums[i / 2][tile][i % 2 * 2 + 1] * scale, factors[tile][1], bias);
      if (8 * tile < left) *at = first;
      if (8 * tile + 1 < left) at[args.out_stride] = second;
      at += 8 * args.out_stride;
    }
  }
}

// Grid: rows of the weight, batches of x, splits of columns.
template <DType kType, int kRowTiles>
__global__ void __launch_bounds__(kDecodedThreads, 2) decoded_tiles_kernel(DecodedArgs args) {
  using Shape = DecodedShape<kType, kRowTiles>;
  using Lanes = Slice<kType>;
  constexpr int kOwnRows = 2 * Shape::kWeightTiles;  // of a lane
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int row_warp = warp % Shape::kRowWarps;
  const int depth_warp = warp / Shape::kRowWarps;
  const auto columns = static_cast<int>(args.weight.columns);
  const int num_steps = Shape::num_steps(columns);
  const int64_t first_row = int64_t{blockIdx.x} * Shape::kWeightRows + row_warp * Shape::kWeightTiles * 16 + lane / 4;
  const uint8_t* rows[kOwnRows];
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    const int64_t row = first_row + 8 * i < args.weight.rows ? first_row + 8 * i : args.weight.rows - 1;
    rows[i] = args.weight.data + row * args.weight.row_bytes;
  }
  const int first_piece = static_cast<int>(blockIdx.z) * args.split_pieces;
  const int num_pieces = (num_steps + Shape::kPieceSteps - 1) / Shape::kPieceSteps;
  const int end_piece = min(num_pieces, first_piece + args.split_pieces);
  typename Lanes::Raw raw[kOwnRows];
  const auto load = [&](int step) {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) Lanes::load(rows[i], 4 * step + lane % 4, columns, raw[i]);
  };
  load(first_piece * Shape::kPieceSteps + depth_warp * Shape::kSteps);
  begin_kernel();
  const uint4* x = args.x + int64_t{blockIdx.y} * num_steps * Shape::kStepVectors;
  auto* shared = dynamic_shared<uint4>();
  begin_piece<Shape>(x, first_piece, num_steps, shared);
  float sums[Shape::kWeightTiles][Shape::kRowTiles][4] = {};
  for (int piece = first_piece; piece < end_piece; ++piece) {
    __pipeline_wait_prior(0);
    __syncthreads();  // the piece is there for all, and the one before it has been used
    const int in_turn = (piece - first_piece) % 2;
    if (piece + 1 < end_piece)
      begin_piece<Shape>(x, piece + 1, num_steps, shared + (1 - in_turn) * Shape::kPieceVectors);
#pragma unroll
    for (int i = 0; i < Shape::kSteps; ++i) {
      const int of_piece = depth_warp * Shape::kSteps + i;
      const int step = piece * Shape::kPieceSteps + of_piece;
      if (step >= num_steps) break;
      SliceFactors<kType> factors[kOwnRows];
#pragma unroll
      for (int n = 0; n < kOwnRows; ++n) factors[n] = SliceFactors<kType>(raw[n], 4 * step + lane % 4, columns);
      if (i + 1 < Shape::kSteps) {
        load(step + 1);
      } else if (piece + 1 < end_piece) {
        load(step + 1 + Shape::kPieceSteps - Shape::kSteps);
      }
      multiply_decoded_step<kType, Shape>(
          factors, shared + in_turn * Shape::kPieceVectors + of_piece * Shape::kStepVectors, lane, sums);
    }
  }
  gather_sums<Shape>(row_warp, depth_warp, lane, sums);
  if (depth_warp > 0) return;
  write_sums<kType, Shape>(args, first_row, rows, lane, sums);
}

template <DType kType, int kRowTiles>
void launch_decoded(const DecodedWork& work, cudaStream_t stream) {
  using Shape = DecodedShape<kType, kRowTiles>;
  const int64_t columns = work.weight.columns;
  const int num_steps = Shape::num_steps(columns);
  const int64_t batches = ceil_div(work.num_rows, Shape::kRows);
  const int64_t x_bytes = batches * num_steps * Shape::kStepVectors * int64_t{sizeof(uint4)};
  constexpr bool kHasFactors = std::is_same_v<typename SliceFactors<kType>::Of, __half>;
  const int64_t factor_bytes = (work.num_rows * int64_t{sizeof(float)} + 15) / 16 * 16;
  const int64_t part_bytes = work.num_rows * work.weight.rows * int64_t{sizeof(float)};
  // Sums that are rounded are parts as well.
  const bool rounds = work.out.dtype != DType::kF32;
  QUIRE_CHECK(work.scratch_bytes >= x_bytes + factor_bytes + (rounds ? part_bytes : 0));
  auto* scratch = static_cast<uint8_t*>(work.scratch);
  auto* staged = reinterpret_cast<uint4*>(scratch);
  auto* factors = kHasFactors ? reinterpret_cast<float*>(scratch + x_bytes) : nullptr;
  auto* parts = reinterpret_cast<float*>(scratch + x_bytes + factor_bytes);
  const auto tiles = static_cast<int64_t>(ceil_div(work.weight.rows, Shape::kWeightRows));
  // Splits until every multiprocessor has its blocks, of two steps of a warp at least.
  const int num_pieces = static_cast<int>(ceil_div(num_steps, Shape::kPieceSteps));
  int64_t splits = kDecodedBlocks / (tiles * batches);
  splits = std::min<int64_t>(
      {splits, num_pieces * Shape::kSteps / 2, (work.scratch_bytes - x_bytes - factor_bytes) / part_bytes});
  splits = std::max<int64_t>(splits, 1);
  const auto split_pieces = static_cast<int>(ceil_div(num_pieces, splits));
  splits = ceil_div(num_pieces, split_pieces);

  launch(stage_rows_kernel<kType, kRowTiles>, static_cast<unsigned>(batches * Shape::kRows), kStageThreads, 0, stream,
         work.x, work.x_stride, work.num_rows, columns, reinterpret_cast<uint2*>(staged), factors);
  DecodedArgs args = {
      .weight = work.weight, .x = staged, .num_rows = work.num_rows, .out = parts, .split_pieces = split_pieces};
  args.out_stride = work.weight.rows;
  args.split_stride = work.num_rows * work.weight.rows;
  const bool in_parts = splits > 1 || rounds;
  if (!in_parts) {
    args.factors = factors;
    args.bias = work.bias;
    args.out = work.out.floats();
    args.out_stride = work.out_stride;
  }
  launch(decoded_tiles_kernel<kType, kRowTiles>,
         dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(batches), static_cast<unsigned>(splits)),
         kDecodedThreads, Shape::kSharedBytes, stream, args);
  if (in_parts) {
    add_parts(parts, static_cast<int>(splits), factors, work.bias, work.num_rows, work.weight.rows, work.out,
              work.out_stride, stream);
  }
}

template <DType kType>
void multiply_decoded_as(const DecodedWork& work, cudaStream_t stream) {
  switch (decoded_row_tiles(work.num_rows)) {
    case 2:
      return launch_decoded<kType, 2>(work, stream);
    case 4:
      return launch_decoded<kType, 4>(work, stream);
    default:
      return launch_decoded<kType, 8>(work, stream);
  }
}

}  // namespace quire::ops::cuda

// The products with weights of one format.
#define QUIRE_DECODED_TILES(name) template void multiply_decoded_as<DType::name>(const DecodedWork&, cudaStream_t);
