// Low-rank adapters of rows (ops/low_rank.h): x goes through `down` into a few floats a row (shrink), and these through
// every part's `up` onto the outputs (expand), in two launches whatever adapters the rows have. A block finds its rows'
// factors in the table that their tokens name, so that a launch that was recorded serves others; rows without an
// adapter cost a block that ends at once.
//
// A row's sums have one order, which its factors' sizes decide: of a rank, each thread's quads of x from the first to
// the last, then the lanes' in a butterfly, then the warps' from the first to the last; of an output, its ranks from
// the first to the last. How many rows a block takes, and how many ranks, changes none of it.
//
// Few rows: a block a row, for their factors are read once each and memory is what is waited for. Many rows: a block
// takes eight, neighbours of one adapter together, which share what is read of it.
#include <algorithm>

#include "ops/cuda/device.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {
namespace {

constexpr int kShrinkThreads = 256;  // which share every rank's columns
constexpr int kShrinkWarps = kShrinkThreads / kWarp;
constexpr int kExpandThreads = 128;      // each with columns of its own
constexpr int kLowRankTogether = 8;      // rows of a block, of many
constexpr int64_t kLowRankFewRows = 64;  // up to which a block takes one
constexpr int kLowRankStaged = 32;       // ranks of a block's rows that are in shared memory at once
constexpr int64_t kLowRankBlockColumns = int64_t{4} * kExpandThreads;
constexpr int64_t kLowRankMostGridY = 16384;  // blocks go on from there

struct LowRankWork {
  LowRankRows rows;
  const float* x;
  int64_t x_stride;
  const TokenId* ids;
  float* out;
  int64_t out_stride;
  int64_t first_row;  // of this launch
  int64_t num_rows;
  float* shrunk;  // [num_rows, heads, most_ranks]

  __device__ float* shrunk_row(int64_t row, int32_t head) const {
    return shrunk + ((row - first_row) * rows.num_heads + head) * rows.most_ranks;
  }
};

// nullptr: there is nothing to add.
__device__ const LowRankFactors* low_rank_factors(const LowRankRows& rows, int64_t row, int32_t head) {
  const LowRankFactors* factors = rows.of_token[rows.tokens != nullptr ? rows.tokens[row] : row];
  if (factors == nullptr) return nullptr;
  factors += rows.entry + head;
  if (rows.offsets != nullptr) {
    // The last expert whose rows begin here or before: those that begin there too have none.
    int32_t expert = 0;
    for (int32_t end = rows.num_experts; end - expert > 1;) {
      const int32_t middle = (expert + end) / 2;
      (rows.offsets[middle] <= row ? expert : end) = middle;
    }
    factors += expert;
  }
  return factors->rank > 0 ? factors : nullptr;
}

// body(factors, row, count) for neighbours of one adapter among the block's rows.
template <int kRows, typename Body>
__device__ void for_low_rank_runs(const LowRankWork& work, int32_t head, const Body& body) {
  const int64_t first = work.first_row + int64_t{blockIdx.x} * kRows;
  const int64_t end = work.first_row + work.num_rows;
  const int rows = end - first < kRows ? static_cast<int>(end - first) : kRows;
  __shared__ const LowRankFactors* found[kRows];
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < rows) found[thread] = low_rank_factors(work.rows, first + thread, head);
  __syncthreads();
  for (int begin = 0; begin < rows;) {
    const LowRankFactors* factors = found[begin];
    int behind = begin + 1;
    while (behind < kRows && behind < rows && found[behind] == factors) ++behind;
    if (factors != nullptr) body(*factors, first + begin, behind - begin);
    begin = behind;
  }
}

__device__ Rows low_rank_numbers(const void* data, DType dtype) {
  Rows rows;
  rows.data = data;
  rows.dtype = dtype;
  return rows;
}

// Four numbers from `index` on, zeros behind the first `left`.
__device__ float4 low_rank_quad(const Rows& rows, int64_t index, int64_t left, bool quads) {
  if (quads) return load_quad(rows, index);
  float4 numbers = make_float4(0, 0, 0, 0);
  numbers.x = load_number(rows, index);
  if (left > 1) numbers.y = load_number(rows, index + 1);
  if (left > 2) numbers.z = load_number(rows, index + 2);
  if (left > 3) numbers.w = load_number(rows, index + 3);
  return numbers;
}

// Sums of kLeft numbers each over the lanes, in the order of warp_sum(): with each exchange a lane gives away half of
// its numbers and keeps half, as long as it has two. Sum i is at last that of the lanes from i * 32 / kLeft on, or, of
// more than 32, number i % (kLeft / 32) of lane i / (kLeft / 32).
template <int kLeft, int kOffset = kWarp / 2, int kCount>
__device__ void sum_over_lanes(float (&numbers)[kCount], [[maybe_unused]] int lane) {
  if constexpr (kOffset > 0 && kLeft == 1) {
    numbers[0] += __shfl_xor_sync(kAllLanes, numbers[0], kOffset);
    sum_over_lanes<1, kOffset / 2>(numbers, lane);
  } else if constexpr (kOffset > 0) {
    constexpr int kHalf = kLeft / 2;
    const bool keeps_second = (lane & kOffset) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float given = keeps_second ? numbers[i] : numbers[kHalf + i];
      const float kept = keeps_second ? numbers[kHalf + i] : numbers[i];
      numbers[i] = kept + __shfl_xor_sync(kAllLanes, given, kOffset);
    }
    sum_over_lanes<kHalf, kOffset / 2>(numbers, lane);
  }
}

// Ranks [rank, rank + kRanks) of `count` rows, up to kRows.
template <DType kType, int kRows, int kRanks>
__device__ void low_rank_shrink(const LowRankWork& work, const LowRankFactors& factors, int64_t row, int count,
                                int32_t head, int32_t rank) {
  const int64_t in = factors.in_features;
  const Rows x = low_rank_numbers(work.x + head * work.rows.x_head + row * work.x_stride, DType::kF32);
  const bool whole = in % 4 == 0;
  const bool x_quads = whole && are_quads(x.data, DType::kF32, work.x_stride);
  const Rows down = low_rank_numbers(factors.down, kType);
  constexpr int kSums = kRows * kRanks;
  float sums[kSums] = {};
  [[maybe_unused]] constexpr int kUnrolled = kRows == 1 ? 4 : 1;  // of one row as many loads are under way as may be
#pragma unroll kUnrolled
  for (int64_t k = int64_t{4} * threadIdx.x; k < in; k += 4 * kShrinkThreads) {
    float4 weights[kRanks];
#pragma unroll
    for (int r = 0; r < kRanks; ++r) {
      const int64_t from = min(rank + r, factors.rank - 1);  // of one too many nothing is kept
      weights[r] = low_rank_quad(down, from * in + k, in - k, whole);
    }
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      const float4 v = low_rank_quad(x, min(m, count - 1) * work.x_stride + k, in - k, x_quads);
#pragma unroll
      for (int r = 0; r < kRanks; ++r) {
        float& sum = sums[m * kRanks + r];
        sum = fmaf(v.x, weights[r].x, sum);
        sum = fmaf(v.y, weights[r].y, sum);
        sum = fmaf(v.z, weights[r].z, sum);
        sum = fmaf(v.w, weights[r].w, sum);
      }
    }
  }
  __shared__ float of_warps[kShrinkWarps][kSums];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncthreads();  // those of the ranks before were read
  sum_over_lanes<kSums>(sums, lane);
  constexpr int kLanesOfOne = kSums < kWarp ? kWarp / kSums : 1;
  constexpr int kOfLane = kSums < kWarp ? 1 : kSums / kWarp;
  if (lane % kLanesOfOne == 0) {
#pragma unroll
    for (int j = 0; j < kOfLane; ++j) of_warps[warp][lane / kLanesOfOne * kOfLane + j] = sums[j];
  }
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  const int m = i / kRanks;
  const int32_t r = rank + i % kRanks;
  if (i >= kSums || m >= count || r >= factors.rank) return;
  float sum = of_warps[0][i];
#pragma unroll
  for (int w = 1; w < kShrinkWarps; ++w) sum += of_warps[w][i];
  if (factors.replaces) {
    const int64_t column = factors.only.size() > 0 ? factors.only.data()[r] : r;
    work.out[(row + m) * work.out_stride + head * work.rows.out_head + column] = sum;
  } else {
    work.shrunk_row(row + m, head)[r] = sum;
  }
}

template <DType kType, int kRows, int kRanks>
__device__ void low_rank_shrink_all(const LowRankWork& work, const LowRankFactors& factors, int64_t row, int count,
                                    int32_t head) {
  const int32_t step = static_cast<int32_t>(gridDim.y) * kRanks;
  for (int32_t rank = static_cast<int32_t>(blockIdx.y) * kRanks; rank < factors.rank; rank += step)
    low_rank_shrink<kType, kRows, kRanks>(work, factors, row, count, head, rank);
}

template <int kRows, int kRanks>
__global__ void __launch_bounds__(kShrinkThreads) low_rank_shrink_kernel(LowRankWork work) {
  begin_kernel();
  const auto head = static_cast<int32_t>(blockIdx.z);
  for_low_rank_runs<kRows>(work, head, [&](const LowRankFactors& factors, int64_t row, int count) {
    if (factors.dtype == DType::kBF16) {
      low_rank_shrink_all<DType::kBF16, kRows, kRanks>(work, factors, row, count, head);
    } else if (factors.dtype == DType::kF16) {
      low_rank_shrink_all<DType::kF16, kRows, kRanks>(work, factors, row, count, head);
    } else {
      low_rank_shrink_all<DType::kF32, kRows, kRanks>(work, factors, row, count, head);
    }
  });
}

// Where a token's row is in a table that has some alone; -1: it has none.
__device__ int64_t low_rank_place(const LowRankFactors& factors, int64_t id) {
  const int32_t* only = factors.only.data();
  const auto size = static_cast<int64_t>(factors.only.size());
  if (size == 0) return id;
  int64_t first = 0;
  for (int64_t count = size; count > 0;) {
    const int64_t half = count / 2;
    if (only[first + half] < id) {
      first += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return first < size && only[first] == id ? first : -1;
}

// Of embeddings: what a product would make of x is a row of `down`.
__global__ void low_rank_look_up_kernel(LowRankWork work) {
  begin_kernel();
  const int64_t row = work.first_row + blockIdx.x;
  const LowRankFactors* factors = low_rank_factors(work.rows, row, 0);
  if (factors == nullptr) return;
  const int64_t place = low_rank_place(*factors, work.ids[row]);
  if (place < 0) return;
  const Rows down = low_rank_numbers(factors->down, factors->dtype);
  float* out = factors->replaces ? work.out + row * work.out_stride : work.shrunk_row(row, 0);
  const int32_t step = static_cast<int32_t>(gridDim.y) * kExpandThreads;
  for (int32_t r = static_cast<int32_t>(blockIdx.y) * kExpandThreads + static_cast<int32_t>(threadIdx.x);
       r < factors->rank; r += step) {
    out[r] = load_number(down, place * factors->rank + r);
  }
}

// A thread's four columns of one row: out = gain * (out + scale * sums) + shift. left: of them that the part has.
__device__ void low_rank_finish(const LowRankPart& part, int64_t column, int64_t left, const float* sums, float* out) {
  const auto finished = [&](int64_t i, float before) {
    float value = fmaf(sums[i], part.scale, before);
    if (part.gain != nullptr) value = fmaf(value, part.gain[column + i], part.shift[column + i]);
    return value;
  };
  if (left >= 4 && reinterpret_cast<uintptr_t>(out) % sizeof(float4) == 0) {
    const float4 before = *reinterpret_cast<const float4*>(out);
    *reinterpret_cast<float4*>(out) =
        make_float4(finished(0, before.x), finished(1, before.y), finished(2, before.z), finished(3, before.w));
    return;
  }
#pragma unroll
  for (int64_t i = 0; i < 4; ++i) {
    if (i < left) out[i] = finished(i, out[i]);
  }
}

// kLowRankBlockColumns of a part from `first_column` on, four a thread, of `count` rows.
template <DType kType, int kRows>
__device__ void low_rank_expand(const LowRankWork& work, const LowRankPart& part, int64_t first_column, int64_t row,
                                int count, int32_t head) {
  __shared__ float staged[kLowRankStaged][kRows];
  const int64_t column = first_column + int64_t{4} * threadIdx.x;
  const bool is_one = column < part.size;
  const Rows up = low_rank_numbers(part.up, kType);
  const int64_t tile = column / kLowRankColumns * part.rank * kLowRankColumns + column % kLowRankColumns;
  float sums[kRows][4] = {};
  for (int32_t begin = 0; begin < part.rank; begin += kLowRankStaged) {
    const int32_t ranks = min(part.rank - begin, kLowRankStaged);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < ranks * kRows; i += kExpandThreads) {
      const int m = i / ranks;
      const int r = i % ranks;
      staged[r][m] = m < count ? work.shrunk_row(row + m, head)[part.first + begin + r] : 0.0f;
    }
    __syncthreads();
    if (!is_one) continue;
#pragma unroll 8
    for (int32_t r = 0; r < ranks; ++r) {
      const float4 weights = load_quad(up, tile + (begin + r) * kLowRankColumns);
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        const float factor = staged[r][m];
        sums[m][0] = fmaf(factor, weights.x, sums[m][0]);
        sums[m][1] = fmaf(factor, weights.y, sums[m][1]);
        sums[m][2] = fmaf(factor, weights.z, sums[m][2]);
        sums[m][3] = fmaf(factor, weights.w, sums[m][3]);
      }
    }
  }
  if (!is_one) return;
  float* out = work.out + row * work.out_stride + head * work.rows.out_head + part.column + column;
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    if (m < count) low_rank_finish(part, column, part.size - column, sums[m], out + m * work.out_stride);
  }
}

template <DType kType, int kRows>
__device__ void low_rank_expand_all(const LowRankWork& work, const LowRankFactors& factors, int64_t row, int count,
                                    int32_t head) {
  const LowRankPart* parts = factors.parts.data();
  const auto num_parts = static_cast<int>(factors.parts.size());
  int64_t block = blockIdx.y;
  for (int p = 0; p < num_parts; ++p) {
    const LowRankPart& part = parts[p];
    const int64_t blocks = (part.size + kLowRankBlockColumns - 1) / kLowRankBlockColumns;
    for (; block < blocks; block += gridDim.y)
      low_rank_expand<kType, kRows>(work, part, block * kLowRankBlockColumns, row, count, head);
    block -= blocks;
  }
}

template <int kRows>
__global__ void __launch_bounds__(kExpandThreads) low_rank_expand_kernel(LowRankWork work) {
  begin_kernel();
  const auto head = static_cast<int32_t>(blockIdx.z);
  for_low_rank_runs<kRows>(work, head, [&](const LowRankFactors& factors, int64_t row, int count) {
    if (factors.dtype == DType::kBF16) {
      low_rank_expand_all<DType::kBF16, kRows>(work, factors, row, count, head);
    } else if (factors.dtype == DType::kF16) {
      low_rank_expand_all<DType::kF16, kRows>(work, factors, row, count, head);
    } else {
      low_rank_expand_all<DType::kF32, kRows>(work, factors, row, count, head);
    }
  });
}

unsigned low_rank_grid_y(int64_t blocks) {
  return static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, kLowRankMostGridY));
}

template <int kRows, int kRanks>
void launch_low_rank(const LowRankArgs& args, const LowRankWork& work, cudaStream_t stream) {
  const LowRankRows& rows = work.rows;
  const int64_t ranks = std::max(rows.most_ranks, rows.most_replaced);
  if (args.x == nullptr) {
    const dim3 grid(static_cast<unsigned>(work.num_rows), low_rank_grid_y(ceil_div(ranks, kExpandThreads)));
    launch(low_rank_look_up_kernel, grid, kExpandThreads, 0, stream, work);
  } else {
    const dim3 grid(ceil_div(work.num_rows, kRows), low_rank_grid_y(ceil_div(ranks, kRanks)),
                    static_cast<unsigned>(rows.num_heads));
    launch(low_rank_shrink_kernel<kRows, kRanks>, grid, kShrinkThreads, 0, stream, work);
  }
  if (rows.most_ranks == 0) return;
  // Each part's last block may be half empty.
  constexpr int64_t kMoreParts = 2;
  const int64_t columns = rows.num_heads > 1 ? rows.out_head : args.out_features;
  const dim3 grid(ceil_div(work.num_rows, kRows), low_rank_grid_y(ceil_div(columns, kLowRankBlockColumns) + kMoreParts),
                  static_cast<unsigned>(rows.num_heads));
  launch(low_rank_expand_kernel<kRows>, grid, kExpandThreads, 0, stream, work);
}

}  // namespace

void add_low_rank(const LowRankArgs& args, void* scratch, int64_t scratch_bytes, cudaStream_t stream) {
  const int64_t bytes_of_row = args.rows.num_heads * args.rows.most_ranks * static_cast<int64_t>(sizeof(float));
  const int64_t rows_at_once =
      bytes_of_row == 0 ? args.num_rows : scratch_bytes / bytes_of_row / kLowRankTogether * kLowRankTogether;
  QUIRE_CHECK_MSG(rows_at_once > 0, "low-rank factors of a row that find no room");
  for (int64_t row = 0; row < args.num_rows; row += rows_at_once) {
    const LowRankWork work{.rows = args.rows,
                           .x = args.x,
                           .x_stride = args.x_stride,
                           .ids = args.ids.device,
                           .out = args.out,
                           .out_stride = args.out_stride,
                           .first_row = row,
                           .num_rows = std::min(rows_at_once, args.num_rows - row),
                           .shrunk = static_cast<float*>(scratch)};
    if (args.num_rows <= kLowRankFewRows) {
      launch_low_rank<1, 2>(args, work, stream);
    } else {
      launch_low_rank<kLowRankTogether, 8>(args, work, stream);
    }
  }
}

}  // namespace quire::ops::cuda
