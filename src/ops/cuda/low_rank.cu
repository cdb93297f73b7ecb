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
// takes eight, neighbours of one adapter together, which share what is read of it. Long runs of one adapter, where not
// one order is asked for: 16 rows by tensor cores, where a number is the sum of two or three of BF16.
#include <algorithm>

#include "ops/cuda/device.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_cores.cuh"

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
constexpr int kLowRankTileRows = 16;          // of a block of tensor cores
constexpr int kLowRankTileRanks = 64;
constexpr int64_t kLowRankLongRun = 8;    // rows of a run, on the mean, from which on tensor cores gain
constexpr int64_t kLowRankFewSums = 512;  // of rows and ranks, for each of which there is a block then

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

// The factors of a block's rows, for all of its threads.
template <int kRows>
struct LowRankFound {
  const LowRankFactors* of_row[kRows];
};

template <int kRows>
__device__ int low_rank_rows_of_block(const LowRankWork& work) {
  const int64_t left = work.num_rows - int64_t{blockIdx.x} * kRows;
  return left < kRows ? static_cast<int>(left) : kRows;
}

template <int kRows>
__device__ void find_low_rank_factors(const LowRankWork& work, int32_t head, LowRankFound<kRows>& found) {
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < low_rank_rows_of_block<kRows>(work)) {
    const int64_t row = work.first_row + int64_t{blockIdx.x} * kRows + thread;
    found.of_row[thread] = low_rank_factors(work.rows, row, head);
  }
  __syncthreads();
}

// body(factors, row, count) for neighbours of one adapter among the block's rows.
template <int kRows, typename Body>
__device__ void for_low_rank_runs(const LowRankWork& work, const LowRankFound<kRows>& found, const Body& body) {
  const int rows = low_rank_rows_of_block<kRows>(work);
  for (int begin = 0; begin < rows;) {
    const LowRankFactors* factors = found.of_row[begin];
    int behind = begin + 1;
    while (behind < kRows && behind < rows && found.of_row[behind] == factors) ++behind;
    if (factors != nullptr) body(*factors, work.first_row + int64_t{blockIdx.x} * kRows + begin, behind - begin);
    begin = behind;
  }
}

// body(std::integral_constant<DType, ...>) of the factors' dtype.
template <typename Body>
__device__ void with_low_rank_type(DType dtype, const Body& body) {
  if (dtype == DType::kBF16) {
    body(std::integral_constant<DType, DType::kBF16>{});
  } else if (dtype == DType::kF16) {
    body(std::integral_constant<DType, DType::kF16>{});
  } else {
    body(std::integral_constant<DType, DType::kF32>{});
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

// Where a row's sum of a rank goes: to what is expanded, or out, where the row is to become it.
__device__ void keep_low_rank_sum(const LowRankWork& work, const LowRankFactors& factors, int64_t row, int32_t head,
                                  int32_t rank, float sum) {
  if (factors.replaces) {
    const int64_t column = factors.only.size() > 0 ? factors.only.data()[rank] : rank;
    work.out[row * work.out_stride + head * work.rows.out_head + column] = sum;
  } else {
    work.shrunk_row(row, head)[rank] = sum;
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
  keep_low_rank_sum(work, factors, row + m, head, r, sum);
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
  __shared__ LowRankFound<kRows> found;
  find_low_rank_factors(work, head, found);
  for_low_rank_runs(work, found, [&](const LowRankFactors& factors, int64_t row, int count) {
    with_low_rank_type(factors.dtype, [&](auto type) {
      low_rank_shrink_all<decltype(type)::value, kRows, kRanks>(work, factors, row, count, head);
    });
  });
}

// Two numbers as pairs of BF16, whose sums they are to 8 bits a pair.
template <int kParts>
struct LowRankPairs {
  unsigned part[kParts];
};
template <int kParts>
__device__ LowRankPairs<kParts> low_rank_pairs(float first, float second) {
  LowRankPairs<kParts> pairs;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    pairs.part[i] = pair_of<__nv_bfloat16>(first, second);
    first -= __uint_as_float(pairs.part[i] << 16);
    second -= __uint_as_float(pairs.part[i] & 0xffff0000u);
  }
  return pairs;
}

// Ranks [rank, rank + 8 * kTiles) of `count` rows, up to kLowRankTileRows: a warp takes every kShrinkWarps-th stretch
// of 32 columns. A lane has four neighbours of each 16 columns, which are two columns of each half of a tensor core's
// 16 on both sides of the product: in what order it adds them up is nobody's concern. Factors of BF16 are one part, of
// F16 two, and x then is two, which leave 16 bits of it; of float32 both are three. of_warps: [kShrinkWarps,
// kLowRankTileRows, 8 * kTiles]. REQUIRES: whole quads of x and of factors.
template <DType kType, int kTiles>
__device__ void low_rank_shrink_tiles(const LowRankWork& work, const LowRankFactors& factors, int64_t row, int count,
                                      int32_t head, int32_t rank, float* of_warps) {
  constexpr int kStretch = 32;
  constexpr int kRanks = 8 * kTiles;
  constexpr int kOfX = kType == DType::kF32 ? 3 : 2;
  constexpr int kOfFactors = kType == DType::kF32 ? 3 : kType == DType::kF16 ? 2 : 1;
  const int64_t in = factors.in_features;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int group = lane / 4;
  const int place = lane % 4;
  const float* x = work.x + head * work.rows.x_head + row * work.x_stride;
  const float* upper = x + min(group, count - 1) * work.x_stride;
  const float* lower = x + min(group + 8, count - 1) * work.x_stride;
  const Rows down = low_rank_numbers(factors.down, kType);
  float sums[kTiles][4] = {};
#pragma unroll 2
  for (int64_t k = int64_t{kStretch} * warp; k < in; k += kStretch * kShrinkWarps) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t at = k + 16 * half + 4 * place;
      const bool is_one = at < in;
      const float4 none = make_float4(0, 0, 0, 0);
      const float4 above = is_one ? *reinterpret_cast<const float4*>(upper + at) : none;
      const float4 below = is_one ? *reinterpret_cast<const float4*>(lower + at) : none;
      float4 weights[kTiles];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int64_t from = min(rank + 8 * t + group, factors.rank - 1);  // of one too many nothing is kept
        weights[t] = is_one ? load_quad(down, from * in + at) : none;
      }
      const LowRankPairs<kOfX> pairs[4] = {
          low_rank_pairs<kOfX>(above.x, above.y), low_rank_pairs<kOfX>(below.x, below.y),
          low_rank_pairs<kOfX>(above.z, above.w), low_rank_pairs<kOfX>(below.z, below.w)};
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const auto first = low_rank_pairs<kOfFactors>(weights[t].x, weights[t].y);
        const auto second = low_rank_pairs<kOfFactors>(weights[t].z, weights[t].w);
#pragma unroll
        for (int i = 0; i < kOfX; ++i) {
          const unsigned left[4] = {pairs[0].part[i], pairs[1].part[i], pairs[2].part[i], pairs[3].part[i]};
#pragma unroll
          for (int j = 0; j < kOfFactors && i + j < kOfX; ++j)
            multiply_16_8_16<__nv_bfloat16>(sums[t], left, first.part[j], second.part[j]);
        }
      }
    }
  }
  __syncthreads();  // those of the ranks before were read
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      of_warps[(warp * kLowRankTileRows + group + 8 * (j / 2)) * kRanks + 8 * t + 2 * place + j % 2] = sums[t][j];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count * kRanks; i += kShrinkThreads) {
    const int32_t r = rank + i % kRanks;
    if (r >= factors.rank) continue;
    float sum = of_warps[i];
#pragma unroll
    for (int w = 1; w < kShrinkWarps; ++w) sum += of_warps[w * kLowRankTileRows * kRanks + i];
    keep_low_rank_sum(work, factors, row + i / kRanks, head, r, sum);
  }
}

__global__ void __launch_bounds__(kShrinkThreads) low_rank_shrink_tiles_kernel(LowRankWork work) {
  begin_kernel();
  const auto head = static_cast<int32_t>(blockIdx.z);
  __shared__ LowRankFound<kLowRankTileRows> found;
  [[maybe_unused]] __shared__ float of_warps[kShrinkWarps * kLowRankTileRows * kLowRankTileRanks];
  find_low_rank_factors(work, head, found);
  for_low_rank_runs(work, found, [&](const LowRankFactors& factors, int64_t row, int count) {
    with_low_rank_type(factors.dtype, [&](auto type) {
      constexpr DType kType = decltype(type)::value;
      if (factors.in_features % 4 != 0 || work.rows.x_head % 4 != 0 || !are_quads(work.x, DType::kF32, work.x_stride)) {
        for (int m = 0; m < count; m += kLowRankTogether) {
          low_rank_shrink_all<kType, kLowRankTogether, 8>(work, factors, row + m, min(count - m, kLowRankTogether),
                                                          head);
        }
        return;
      }
      const int32_t step = static_cast<int32_t>(gridDim.y) * kLowRankTileRanks;
      for (int32_t rank = static_cast<int32_t>(blockIdx.y) * kLowRankTileRanks; rank < factors.rank; rank += step) {
        const int32_t left = factors.rank - rank;
        if (left <= 16) {
          low_rank_shrink_tiles<kType, 2>(work, factors, row, count, head, rank, of_warps);
        } else if (left <= 32) {
          low_rank_shrink_tiles<kType, 4>(work, factors, row, count, head, rank, of_warps);
        } else {
          low_rank_shrink_tiles<kType, 8>(work, factors, row, count, head, rank, of_warps);
        }
      }
    });
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

// What becomes of an output: gain * (before + scale * sum) + shift.
__device__ float low_rank_finished(const LowRankPart& part, int64_t column, float before, float sum) {
  const float value = fmaf(sum, part.scale, before);
  return part.gain == nullptr ? value : fmaf(value, part.gain[column], part.shift[column]);
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
  float* out = work.out + row * work.out_stride + head * work.rows.out_head + part.column + column;
  const bool whole = is_one && part.size - column >= 4 && are_quads(out, DType::kF32, work.out_stride);
  // On the way while the sums are made.
  float4 before[kRows];
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    if (whole && m < count) before[m] = *reinterpret_cast<const float4*>(out + m * work.out_stride);
  }
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
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    if (m >= count) break;
    float* to = out + m * work.out_stride;
    if (whole) {
      *reinterpret_cast<float4*>(to) = make_float4(low_rank_finished(part, column, before[m].x, sums[m][0]),
                                                   low_rank_finished(part, column + 1, before[m].y, sums[m][1]),
                                                   low_rank_finished(part, column + 2, before[m].z, sums[m][2]),
                                                   low_rank_finished(part, column + 3, before[m].w, sums[m][3]));
      continue;
    }
#pragma unroll
    for (int64_t i = 0; i < 4; ++i) {
      if (column + i < part.size) to[i] = low_rank_finished(part, column + i, to[i], sums[m][i]);
    }
  }
}

// body(part, first column) of the stretches of kLowRankBlockColumns, part after part, that are this block's.
template <typename Body>
__device__ void for_low_rank_columns(const LowRankFactors& factors, const Body& body) {
  const LowRankPart* parts = factors.parts.data();
  const auto num_parts = static_cast<int>(factors.parts.size());
  int64_t block = blockIdx.y;
  for (int p = 0; p < num_parts; ++p) {
    const LowRankPart& part = parts[p];
    const int64_t blocks = (part.size + kLowRankBlockColumns - 1) / kLowRankBlockColumns;
    for (; block < blocks; block += gridDim.y) body(part, block * kLowRankBlockColumns);
    block -= blocks;
  }
}

template <int kRows>
__global__ void __launch_bounds__(kExpandThreads) low_rank_expand_kernel(LowRankWork work) {
  const auto head = static_cast<int32_t>(blockIdx.z);
  // What the rows' tables say was there before the launch that this one follows, of x through the first factors.
  __shared__ LowRankFound<kRows> found;
  find_low_rank_factors(work, head, found);
  begin_kernel();
  for_low_rank_runs(work, found, [&](const LowRankFactors& factors, int64_t row, int count) {
    with_low_rank_type(factors.dtype, [&](auto type) {
      for_low_rank_columns(factors, [&](const LowRankPart& part, int64_t first_column) {
        low_rank_expand<decltype(type)::value, kRows>(work, part, first_column, row, count, head);
      });
    });
  });
}

unsigned low_rank_grid_y(int64_t blocks) {
  return static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, kLowRankMostGridY));
}

template <int kRows, int kRanks>
void launch_low_rank(const LowRankArgs& args, const LowRankWork& work, bool tiles, cudaStream_t stream) {
  const LowRankRows& rows = work.rows;
  const int64_t ranks = std::max(rows.most_ranks, rows.most_replaced);
  if (args.x == nullptr) {
    const dim3 grid(static_cast<unsigned>(work.num_rows), low_rank_grid_y(ceil_div(ranks, kExpandThreads)));
    launch(low_rank_look_up_kernel, grid, kExpandThreads, 0, stream, work);
  } else if (tiles) {
    const dim3 grid(ceil_div(work.num_rows, kLowRankTileRows), low_rank_grid_y(ceil_div(ranks, kLowRankTileRanks)),
                    static_cast<unsigned>(rows.num_heads));
    launch(low_rank_shrink_tiles_kernel, grid, kShrinkThreads, 0, stream, work);
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

void add_low_rank(const LowRankArgs& args, bool one_order, void* scratch, int64_t scratch_bytes, cudaStream_t stream) {
  const bool tiles = !one_order && args.rows.num_runs > 0 && args.num_rows >= kLowRankLongRun * args.rows.num_runs;
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
    if (args.num_rows <= kLowRankFewRows && args.num_rows * args.rows.most_ranks <= kLowRankFewSums) {
      launch_low_rank<1, 1>(args, work, false, stream);
    } else if (args.num_rows <= kLowRankFewRows) {
      launch_low_rank<1, 2>(args, work, false, stream);
    } else {
      launch_low_rank<kLowRankTogether, 8>(args, work, tiles, stream);
    }
  }
}

}  // namespace quire::ops::cuda
