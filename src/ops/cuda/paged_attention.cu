// Attention over the paged cache with an online softmax, for every shape that ops/paged_attention.h allows, in float32;
// and which kernel takes which sequences (attend()): those with tensor cores where rounding is allowed and they have
// the shape, else the one of this file.
//
// A block of four warps takes up to 4 * kRowsPerWarp rows, each one head of one query, all of one sequence and one kv
// head, and goes through the positions that any of them sees in tiles of 32: a tile of keys and one of values are read
// from the cache once, widened into shared memory and used by all rows. A lane scores one position of the tile, then
// sums the values of head_dim / 32 numbers.
//
// What is computed for a row depends on its position and its cache alone. Tiles and splits are cut by absolute
// position; each split of kSplit positions is summed from nothing and folded, in order, into the row's total. Where
// the fold happens is free and changes no bit:
//   whole   the block goes through all splits and keeps its rows' totals in `out`;
//   split   a block for each split or few leaves sums in scratch, fold_splits() folds them: for sequences of few
//   queries
//           where `whole` would keep too little of the card at work.
// Products and sums are spelled as fused ones, so that no compiler chooses differently for two of the cases.
//
// CUDA graphs: the grid of `whole` depends on num_sequences and num_tokens. The choice between the two, and the number
// of splits in the grid, depend on the host's query_offsets and context_lengths (attend()): a graph would be
// captured with bounds of both; blocks beyond a sequence's end leave at once. Who shares what with whom
// (span_places) lies on the device.
#include "ops/paged_attention.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ops/cuda/attention.cuh"
#include "ops/cuda/attention_waves.h"
#include "ops/cuda/device.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/kv_values.cuh"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {
namespace {

constexpr int kTile = kWarp;           // positions: a lane each
constexpr int kKeyStride = kTile + 1;  // of a tile of keys [head_dim, kTile]: a column is as free of conflicts as a row
constexpr int kSplit = 512;            // positions, a multiple of kTile
constexpr int64_t kLargestScratch = int64_t{64} << 20;
// Heads above this keep one tile, of keys and then of values, since two would not fit.
constexpr int kOneTileChunks = 18;

// --- tiles

// Calls store(d, t, number) for number d of every position begin + t of a tile that lies in [first, last]. What is
// beside them is left as it was.
template <DType kFormat, typename Store>
__device__ void load_tile(const Attention& args, const uint8_t* memory, bool vectors, const BlockId* table,
                          int32_t begin, int32_t first, int32_t last, const Store& store) {
  using Code = typename KvFormat<kFormat>::Code;
  constexpr int kThreadsOfToken = kThreads / kTile;
  const int t = static_cast<int>(threadIdx.x) / kThreadsOfToken;
  const int part = static_cast<int>(threadIdx.x) % kThreadsOfToken;
  if (begin + t > last || begin + t < first) return;
  const Slot slot = slot_of(args, memory, table, begin + t);
  const auto* codes = reinterpret_cast<const Code*>(slot.head) + slot.token * args.head_dim;
  if (vectors) {
    constexpr int kNumbers = kNumbersOfVector<kFormat>;
    for (int d = part * kNumbers; d < args.head_dim; d += kThreadsOfToken * kNumbers) {
      const uint4 vector = *reinterpret_cast<const uint4*>(codes + d);
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) store(d + i, t, number_of<kFormat>(vector, i));
    }
    return;
  }
  for (int d = part; d < args.head_dim; d += kThreadsOfToken) store(d, t, KvFormat<kFormat>::number(codes[d]));
}

// Keys -> tile [head_dim, kKeyStride], and `copy` [kTile, kCopyStride] where that is not 0.
template <DType kFormat, int kCopyStride>
__device__ void load_keys(const Attention& args, const BlockId* table, int32_t begin, int32_t first, int32_t last,
                          float* tile, float* copy) {
  load_tile<kFormat>(args, args.keys, args.vectors_of_keys, table, begin, first, last, [&](int d, int t, float number) {
    tile[d * kKeyStride + t] = number;
    if (kCopyStride > 0) copy[t * kCopyStride + d] = number;
  });
}

// Number d of the value of position begin + t -> tile[t * kStrideT + d * kStrideD].
template <DType kFormat, int kStrideT, int kStrideD>
__device__ void load_values(const Attention& args, const BlockId* table, int32_t begin, int32_t first, int32_t last,
                            float* tile) {
  load_tile<kFormat>(args, args.values, args.vectors_of_values, table, begin, first, last,
                     [&](int d, int t, float number) { tile[t * kStrideT + d * kStrideD] = number; });
}

// --- arithmetic

// A warp's rows: slot k is row k * kWarps + warp of the block's.
template <int kChunks, int kRowsPerWarp>
struct WarpRows {
  int32_t first[kRowsPerWarp];  // position that the row sees; last < first: there is no such row
  int32_t last[kRowsPerWarp];
  Softmax total[kRowsPerWarp];        // of the splits before
  Softmax split[kRowsPerWarp];        // of this one; each lane has a sum of its own
  float sums[kRowsPerWarp][kChunks];  // of this split: number lane + 32 * chunk
};

// Scores of the lane's position: queries [kRowsPerWarp, kWarps * query_stride apart] by tile [head_dim, kKeyStride].
template <int kRowsPerWarp>
__device__ inline void score(const float* queries, int query_stride, const float* tile, int head_dim, int lane,
                             float (&scores)[kRowsPerWarp]) {
  for (float& one : scores) one = 0;
  int d = 0;
  for (; d + 4 <= head_dim; d += 4) {
    float keys[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) keys[i] = tile[(d + i) * kKeyStride + lane];
#pragma unroll
    for (int k = 0; k < kRowsPerWarp; ++k) {
      const float4 query = *reinterpret_cast<const float4*>(queries + k * kWarps * query_stride + d);
      scores[k] = fmaf(query.x, keys[0], scores[k]);
      scores[k] = fmaf(query.y, keys[1], scores[k]);
      scores[k] = fmaf(query.z, keys[2], scores[k]);
      scores[k] = fmaf(query.w, keys[3], scores[k]);
    }
  }
  for (; d < head_dim; ++d) {
#pragma unroll
    for (int k = 0; k < kRowsPerWarp; ++k)
      scores[k] = fmaf(queries[k * kWarps * query_stride + d], tile[d * kKeyStride + lane], scores[k]);
  }
}

// Weights of the tile's positions -> weights [kRowsPerWarp, kTile]; what was summed before them is made smaller.
template <int kChunks, int kRowsPerWarp>
__device__ inline void weigh(const Attention& args, WarpRows<kChunks, kRowsPerWarp>& rows,
                             const float (&scores)[kRowsPerWarp], int32_t begin, int lane, float key_scale,
                             float value_scale, float* weights) {
  const bool scaled = args.dtype == DType::kI8;
#pragma unroll
  for (int k = 0; k < kRowsPerWarp; ++k) {
    const bool seen = begin + lane >= rows.first[k] && begin + lane <= rows.last[k];
    float score = scaled ? __fmul_rn(scores[k], key_scale) : scores[k];
    if (args.soft_cap > 0) score = __fmul_rn(args.soft_cap * kLog2E, tanhf(score / args.soft_cap));
    Softmax& split = rows.split[k];
    const float maximum = fmaxf(split.maximum, warp_max(seen ? score : -INFINITY));
    if (maximum != split.maximum) {
      const float factor = exp2f(split.maximum - maximum);
      split = {maximum, __fmul_rn(split.sum, factor)};
#pragma unroll
      for (int j = 0; j < kChunks; ++j) rows.sums[k][j] = __fmul_rn(rows.sums[k][j], factor);
    }
    const float weight = seen ? exp2f(score - maximum) : 0.0f;
    split.sum += weight;
    weights[k * kTile + lane] = seen && scaled ? __fmul_rn(weight, value_scale) : weight;
  }
}

// sums += weights [kRowsPerWarp, kTile] by the tile of values. kAll: every row that there is sees all positions; else
// those that a row does not see are left out, whatever lies there.
template <bool kAll, int kStrideT, int kStrideD, int kChunks, int kRowsPerWarp>
__device__ inline void add_values(WarpRows<kChunks, kRowsPerWarp>& rows, const float* weights, const float* tile,
                                  int32_t begin, int lane) {
  for (int t = 0; t < kTile; t += 4) {
    float4 weight[kRowsPerWarp];
#pragma unroll
    for (int k = 0; k < kRowsPerWarp; ++k) weight[k] = *reinterpret_cast<const float4*>(weights + k * kTile + t);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t position = begin + t + i;
      const float* values = tile + (t + i) * kStrideT + lane * kStrideD;
#pragma unroll
      for (int j = 0; j < kChunks; ++j) {
        const float value = values[j * kWarp * kStrideD];
#pragma unroll
        for (int k = 0; k < kRowsPerWarp; ++k) {
          const float factor = i == 0 ? weight[k].x : i == 1 ? weight[k].y : i == 2 ? weight[k].z : weight[k].w;
          if (kAll || (position >= rows.first[k] && position <= rows.last[k]))
            rows.sums[k][j] = fmaf(factor, value, rows.sums[k][j]);
        }
      }
    }
  }
}

// --- the ends of splits

// What a split gave its rows goes to `out` or, where others hold more of the row, to scratch.
template <int kChunks, int kRowsPerWarp>
__device__ inline void end_split(const Attention& args, const Rows& block, WarpRows<kChunks, kRowsPerWarp>& rows,
                                 int32_t split, int warp, int lane) {
#pragma unroll
  for (int k = 0; k < kRowsPerWarp; ++k) {
    const int32_t first_split = rows.first[k] / kSplit;
    const int32_t last_split = rows.last[k] / kSplit;
    if (rows.last[k] < rows.first[k] || split < first_split || split > last_split) continue;
    const Softmax part = {rows.split[k].maximum, warp_sum(rows.split[k].sum)};
    const int32_t row = block.first + k * kWarps + warp;
    const int32_t query = row / args.group;
    const auto head = static_cast<int32_t>(blockIdx.y) * args.group + row % args.group;
    if (args.num_splits > 0 && first_split != last_split) {
      const int64_t index = partial_index(args, block.sequence, query, head, split);
      if (lane == 0) args.partial_states[index] = make_float2(part.maximum, part.sum);
      float* sums = args.partial_sums + index * args.head_dim;
#pragma unroll
      for (int j = 0; j < kChunks; ++j) {
        if (lane + j * kWarp < args.head_dim) sums[lane + j * kWarp] = rows.sums[k][j];
      }
      continue;
    }
    Fold weights = {0, 1};
    if (split == first_split) {
      rows.total[k] = part;
    } else {
      weights = fold(rows.total[k], part);
    }
    const float factor = split == last_split ? final_factor(args, rows.total[k], head) : 1.0f;
    float* out = args.out + ((int64_t{block.first_token} + query) * args.num_heads + head) * args.head_dim;
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      const int d = lane + j * kWarp;
      if (d >= args.head_dim) continue;
      float sum = rows.sums[k][j];
      if (split != first_split) sum = fmaf(out[d], weights.before, __fmul_rn(sum, weights.part));
      out[d] = __fmul_rn(sum, factor);
    }
  }
}

// Folds what the blocks of each split left for one row. Grid: (sequences * few_queries, heads).
__global__ void fold_splits(const Attention args) {
  begin_kernel();
  const auto sequence = static_cast<int32_t>(blockIdx.x) / args.few_queries;
  const int32_t query = static_cast<int32_t>(blockIdx.x) % args.few_queries;
  const auto head = static_cast<int32_t>(blockIdx.y);
  const int32_t first_token = args.query_offsets[sequence];
  const int32_t num_queries = args.query_offsets[sequence + 1] - first_token;
  if (num_queries > kFewQueries || query >= num_queries) return;
  const int32_t position = args.context_lengths[sequence] - num_queries + query;
  const int32_t first_split = first_seen(args, position) / args.split;
  const int32_t last_split = last_seen(args, position, sequence) / args.split;
  if (first_split == last_split) return;
  const int64_t first = partial_index(args, sequence, query, head, first_split);
  float* out = args.out + ((int64_t{first_token} + query) * args.num_heads + head) * args.head_dim;
  for (int d = static_cast<int>(threadIdx.x); d < args.value_dim; d += kThreads) {
    const float* sums = args.partial_sums + first * args.head_dim + d;
    Softmax total = {args.partial_states[first].x, args.partial_states[first].y};
    float sum = sums[0];
#pragma unroll 4
    for (int32_t split = 1; split <= last_split - first_split; ++split) {
      const float2 state = args.partial_states[first + split];
      const Fold weights = fold(total, {state.x, state.y});
      sum = fmaf(sum, weights.before, __fmul_rn(sums[int64_t{split} * args.head_dim], weights.part));
    }
    out[d] = __fmul_rn(sum, final_factor(args, total, head));
  }
}

// --- the kernel

// Where things lie in a block's shared memory, in floats from its beginning.
struct Layout {
  int query_stride;
  int weights;  // [rows, kTile]
  int queries;  // [rows, query_stride]
  int values;   // a tile [kTile, chunks * 32]; with one tile there is none
  int keys;     // a tile [head_dim, kKeyStride]; with one tile for values as well, whose lanes read all chunks
  int size;
};
__host__ __device__ inline Layout layout(int chunks, int rows, int head_dim) {
  const bool one_tile = chunks == kOneTileChunks;
  const int query_stride = (head_dim + 3) / 4 * 4;
  const int queries = rows * kTile;
  const int values = queries + rows * query_stride;
  const int keys = values + (one_tile ? 0 : kTile * chunks * kWarp);
  const int size = keys + (one_tile ? chunks * kWarp : head_dim) * kKeyStride;
  return {query_stride, 0, queries, values, keys, size};
}

// The block's queries, scaled; zeros behind the sequence's rows. to: [num_rows, stride].
__device__ __forceinline__ void load_queries(const Attention& args, const Rows& block, int num_rows, int warp, int lane,
                                             float* to, int stride) {
  for (int row = warp; row < num_rows; row += kWarps) {
    const int32_t r = block.first + row;
    const float* query = args.queries + (int64_t{block.first_token} + r / args.group) * args.query_stride +
                         int64_t{blockIdx.y * args.group + r % args.group} * args.head_dim;
    for (int d = lane; d < args.head_dim; d += kWarp)
      to[row * stride + d] = r < block.num_rows ? __fmul_rn(query[d], args.query_factor) : 0.0f;
  }
}

// What the warp's rows see.
template <int kChunks, int kRowsPerWarp>
__device__ __forceinline__ void begin_rows(const Attention& args, const Rows& block, int warp,
                                           WarpRows<kChunks, kRowsPerWarp>& rows) {
#pragma unroll
  for (int k = 0; k < kRowsPerWarp; ++k) {
    const int32_t row = block.first + k * kWarps + warp;
    const int32_t position = block.first_position + row / args.group;
    rows.first[k] = row < block.num_rows ? first_seen(args, position) : 0;
    rows.last[k] = row < block.num_rows ? last_seen(args, position, block.sequence) : -1;
    rows.total[k] = {-INFINITY, 0};
  }
}

template <int kChunks, int kRowsPerWarp>
__device__ __forceinline__ void begin_split(WarpRows<kChunks, kRowsPerWarp>& rows) {
#pragma unroll
  for (int k = 0; k < kRowsPerWarp; ++k) {
    rows.split[k] = {-INFINITY, 0};
#pragma unroll
    for (float& sum : rows.sums[k]) sum = 0;
  }
}

// Whether any of the warp's rows sees any of a tile's positions, and whether those there are see all of them.
struct Seen {
  bool any = false;
  bool all = true;
};
template <int kChunks, int kRowsPerWarp>
__device__ __forceinline__ Seen seen_of_tile(const WarpRows<kChunks, kRowsPerWarp>& rows, int32_t begin) {
  Seen seen;
#pragma unroll
  for (int k = 0; k < kRowsPerWarp; ++k) {
    seen.any = seen.any || (rows.first[k] < begin + kTile && rows.last[k] >= begin);
    seen.all =
        seen.all && (rows.last[k] < rows.first[k] || (rows.first[k] <= begin && rows.last[k] >= begin + kTile - 1));
  }
  return seen;
}

// Grid of `whole`: (num_tokens * group / rows + num_sequences, kv heads); of `split`: (sequences * tiles, kv heads,
// splits).
template <int kChunks, int kRowsPerWarp>
__global__ void __launch_bounds__(kThreads) attend_rows(const Attention args) {
  begin_kernel();
  constexpr int kRows = kWarps * kRowsPerWarp;
  constexpr bool kOneTile = kChunks == kOneTileChunks;
  constexpr int kStrideT = kOneTile ? 1 : kChunks * kWarp;
  constexpr int kStrideD = kOneTile ? kKeyStride : 1;
  Rows block;
  if (!find_rows(args, kRows, block)) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int32_t last_row = min(block.first + kRows, block.num_rows) - 1;
  const int32_t last = last_seen(args, block.first_position + last_row / args.group, block.sequence);
  const int32_t first = first_seen(args, block.first_position + block.first / args.group);
  int32_t first_split = 0;
  int32_t last_split = 0;
  if (!find_splits(args, kSplit, first, last, first_split, last_split)) return;

  const Layout at = layout(kChunks, kRows, args.head_dim);
  auto* shared = dynamic_shared<float>();
  float* keys = shared + at.keys;
  float* values = kOneTile ? keys : shared + at.values;
  float* weights = shared + at.weights + warp * kRowsPerWarp * kTile;
  const float* queries = shared + at.queries + warp * at.query_stride;
  const BlockId* table = args.block_tables + block.sequence * args.block_table_stride;

  load_queries(args, block, kRows, warp, lane, shared + at.queries, at.query_stride);
  WarpRows<kChunks, kRowsPerWarp> rows;
  begin_rows(args, block, warp, rows);

  for (int32_t split = first_split; split <= last_split; ++split) {
    begin_split(rows);
    const int32_t end = min(last, split * kSplit + kSplit - 1);
    for (int32_t begin = max(first / kTile * kTile, split * kSplit); begin <= end; begin += kTile) {
      __syncthreads();  // the tile before has been used
      with_kv_format(args.dtype, [&](auto format) {
        constexpr DType kFormat = decltype(format)::value;
        if (args.values_are_keys) {
          load_keys<kFormat, kOneTile ? 0 : kStrideT>(args, table, begin, first, last, keys, values);
        } else {
          load_keys<kFormat, 0>(args, table, begin, first, last, keys, nullptr);
          if (!kOneTile) load_values<kFormat, kStrideT, kStrideD>(args, table, begin, first, last, values);
        }
      });
      __syncthreads();
      const Seen seen = seen_of_tile(rows, begin);
      if (seen.any) {
        float key_scale = 1;
        float value_scale = 1;
        if (args.dtype == DType::kI8 && begin + lane >= first && begin + lane <= last) {
          key_scale = scale_at(args, args.keys, table, begin + lane);
          value_scale = args.values_are_keys ? key_scale : scale_at(args, args.values, table, begin + lane);
        }
        float scores[kRowsPerWarp];
        score(queries, at.query_stride, keys, args.head_dim, lane, scores);
        weigh(args, rows, scores, begin, lane, key_scale, value_scale, weights);
        __syncwarp();
      }
      if (kOneTile && !args.values_are_keys) {
        __syncthreads();
        with_kv_format(args.dtype, [&](auto format) {
          load_values<decltype(format)::value, kStrideT, kStrideD>(args, table, begin, first, last, values);
        });
        __syncthreads();
      }
      if (seen.any && seen.all) add_values<true, kStrideT, kStrideD>(rows, weights, values, begin, lane);
      if (seen.any && !seen.all) add_values<false, kStrideT, kStrideD>(rows, weights, values, begin, lane);
    }
    end_split(args, block, rows, split, warp, lane);
  }
}

// --- launches

template <int kChunks, int kRowsPerWarp>
void launch_rows(const Attention& work, dim3 grid, cudaStream_t stream) {
  const size_t bytes = sizeof(float) * static_cast<size_t>(layout(kChunks, kWarps * kRowsPerWarp, work.head_dim).size);
  if (bytes > size_t{48} << 10) {
    check_cuda(cudaFuncSetAttribute(attend_rows<kChunks, kRowsPerWarp>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes)),
               "shared memory of attention");
  }
  launch(attend_rows<kChunks, kRowsPerWarp>, grid, kThreads, bytes, stream, work);
}

// Rows of a warp where the largest sequence of a launch has `rows` for a kv head.
int rows_per_warp(int64_t rows, int32_t head_dim) {
  if (rows <= kWarps) return 1;
  return rows <= 2 * kWarps || head_dim > 256 ? 2 : 4;
}

template <int kRowsPerWarp>
void launch_chunks(const Attention& work, dim3 grid, cudaStream_t stream) {
  if (work.head_dim <= 64) return launch_rows<2, kRowsPerWarp>(work, grid, stream);
  if (work.head_dim <= 128) return launch_rows<4, kRowsPerWarp>(work, grid, stream);
  if (work.head_dim <= 256) return launch_rows<8, kRowsPerWarp>(work, grid, stream);
  if constexpr (kRowsPerWarp < 4) return launch_rows<kOneTileChunks, kRowsPerWarp>(work, grid, stream);
}

void launch_attention(const Attention& work, int rows, dim3 grid, cudaStream_t stream) {
  if (rows == 1) return launch_chunks<1>(work, grid, stream);
  if (rows == 2) return launch_chunks<2>(work, grid, stream);
  return launch_chunks<4>(work, grid, stream);
}

// What the host knows of a batch.
struct Batch {
  int32_t most_queries = 0;  // of a sequence
  int32_t few_queries = 0;   // most of a sequence that has at most kFewQueries
  int32_t longest_few = 0;   // context of such a sequence
  int32_t num_few = 0;       // such sequences
  int64_t longest_seen = 0;  // positions that such a sequence sees
  int64_t total_seen = 0;    // of all of them
  bool any_many = false;
};

Batch look_at(const PagedAttentionArgs& args) {
  Batch batch;
  for (int32_t s = 0; s < args.num_sequences; ++s) {
    const int32_t queries = args.query_offsets.host[s + 1] - args.query_offsets.host[s];
    if (queries == 0) continue;
    batch.most_queries = std::max(batch.most_queries, queries);
    batch.any_many = batch.any_many || queries > kFewQueries;
    if (queries > kFewQueries) continue;
    ++batch.num_few;
    batch.few_queries = std::max(batch.few_queries, queries);
    const int32_t context = args.context_lengths.host[s];
    const int32_t seen = args.window > 0 ? std::min(context, args.window + queries) : context;
    batch.longest_few = std::max(batch.longest_few, context);
    batch.longest_seen = std::max<int64_t>(batch.longest_seen, seen);
    batch.total_seen += seen;
  }
  return batch;
}

bool is_aligned(const void* at) {
  return reinterpret_cast<uintptr_t>(at) % 16 == 0;
}

Attention work_of(const PagedAttentionArgs& args) {
  const KvCacheView& cache = args.cache;
  QUIRE_CHECK(cache.keys_by_token);
  const bool aligned =
      head_bytes(cache) % 16 == 0 && block_stride(cache) % 16 == 0 && row_bytes(cache.dtype, cache.head_dim) % 16 == 0;
  return {.queries = args.queries,
          .query_stride = args.query_stride,
          .out = args.out,
          .sinks = args.sinks,
          .keys = static_cast<const uint8_t*>(cache.keys),
          .values = static_cast<const uint8_t*>(cache.values),
          .head_bytes = head_bytes(cache),
          .block_stride = block_stride(cache),
          .query_offsets = args.query_offsets.device,
          .context_lengths = args.context_lengths.device,
          .block_tables = args.block_tables.device,
          .block_table_stride = args.block_table_stride,
          .dtype = cache.dtype,
          .num_sequences = args.num_sequences,
          .num_heads = args.num_heads,
          .num_kv_heads = cache.num_kv_heads,
          .group = args.num_heads / cache.num_kv_heads,
          .head_dim = cache.head_dim,
          .value_dim = args.value_dim > 0 ? args.value_dim : cache.head_dim,
          .block_size = cache.block_size,
          .window = args.window,
          .both_ways = args.both_ways,
          .values_are_keys = cache.values_are_keys,
          .vectors_of_keys = aligned && is_aligned(cache.keys),
          .vectors_of_values = aligned && is_aligned(cache.values),
          .query_factor = args.soft_cap > 0 ? args.scale : args.scale * kLog2E,
          .soft_cap = args.soft_cap,
          .part = Part::kAll,
          .split = kSplit,
          .num_splits = 0,
          .splits_each = 1,
          .one_query = false,
          .most_rows = 0,
          .tiles = 0,
          .few_queries = 0,
          .span_places = nullptr,
          .num_shared_spans = 0,
          .partial_sums = nullptr,
          .partial_states = nullptr};
}

// Bytes of `count` partial results.
int64_t partial_bytes(int64_t count, int64_t head_dim) {
  return count * (head_dim * static_cast<int64_t>(sizeof(float)) + static_cast<int64_t>(sizeof(float2)));
}

}  // namespace

// Whether the card has so much shared memory for a block.
bool has_shared(int bytes) {
  int device = 0;
  int most = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  return bytes <= most;
}

int64_t attention_scratch_bytes(int64_t num_tokens, int32_t num_heads, int32_t head_dim, int64_t max_context) {
  const int64_t splits = ceil_div(max_context, kFewSplit);
  if (splits <= 1) return 0;
  return std::min(kLargestScratch, partial_bytes(num_tokens * kFewQueries * num_heads * splits, head_dim));
}

void attend(const PagedAttentionArgs& args, bool may_round, void* scratch, int64_t scratch_bytes, cudaStream_t stream,
            bool only_few) {
  if (args.both_ways) may_round = false;  // the kernels with tensor cores are causal
  const Batch batch = look_at(args);
  if (batch.most_queries == 0 || (only_few && batch.num_few == 0)) return;
  Attention work = work_of(args);
  const bool few_kernel = may_round && has_few_kernel(work);
  // The kernel of sequences of few queries, or of all, and the rows of a block of it for such sequences.
  const auto start = [&](const Attention& part, int rows, dim3 grid) {
    if (few_kernel) return attend_few(part, grid, stream);
    launch_attention(part, rows / kWarps, grid, stream);
  };
  const auto rows_of_block = [&](int32_t queries) {
    return few_kernel ? kFewRowsOfBlock : kWarps * rows_per_warp(int64_t{queries} * work.group, work.head_dim);
  };
  const auto kv_heads = static_cast<unsigned>(work.num_kv_heads);
  if (few_kernel) work.split = kFewSplit;

  const int few_rows = rows_of_block(batch.few_queries);
  const auto tiles = static_cast<int32_t>(ceil_div(int64_t{batch.few_queries} * work.group, few_rows));
  const int64_t splits = ceil_div(batch.longest_few, work.split);
  const int64_t partials = int64_t{args.num_sequences} * batch.few_queries * args.num_heads * splits;
  // Rows of one sequence that fill whole tiles leave no room for those of others.
  const bool shares = few_kernel && args.span_places.device != nullptr && work.group % kFewRowsOfBlock != 0;
  const DecodedContexts contexts = {batch.num_few, int64_t{tiles} * work.num_kv_heads, batch.longest_seen,
                                    batch.total_seen};
  const bool split = splits > 1 && (shares || cuts_contexts(contexts, work.split)) &&
                     partial_bytes(partials, work.head_dim) <= scratch_bytes;
  if (split) {
    Attention some = work;
    some.part = Part::kFew;
    some.num_splits = static_cast<int32_t>(splits);
    some.tiles = tiles;
    some.few_queries = batch.few_queries;
    some.most_rows = batch.few_queries * work.group;
    some.span_places = shares ? args.span_places.device : nullptr;
    some.num_shared_spans = shares ? args.num_shared_spans : 0;
    some.partial_states = static_cast<float2*>(scratch);
    some.partial_sums = static_cast<float*>(scratch) + 2 * partials;
    // A shared split's rows are not those of the next.
    if (!shares) some.splits_each = static_cast<int32_t>(splits_of_block(contexts, work.split));
    const auto sequences = static_cast<unsigned>(args.num_sequences);
    start(some, few_rows, dim3(sequences * static_cast<unsigned>(tiles), kv_heads, ceil_div(splits, some.splits_each)));
    launch(fold_splits,
           dim3(sequences * static_cast<unsigned>(batch.few_queries), static_cast<unsigned>(args.num_heads)), kThreads,
           0, stream, some);
    if (!batch.any_many || only_few) return;
    work.part = Part::kMany;
  }
  const int64_t num_rows = int64_t{args.query_offsets.host[args.num_sequences]} * work.group;
  if (only_few && batch.any_many) {
    work.part = Part::kFew;
  } else if (may_round && batch.any_many) {
    // Sequences of few queries stay with the kernel that they have elsewhere.
    Attention many = work;
    many.part = Part::kMany;
    if (attend_tiles(many, num_rows, stream)) {
      if (split || batch.num_few == 0) return;
      work.part = Part::kFew;
    }
  }
  work.most_rows = (work.part == Part::kFew ? batch.few_queries : batch.most_queries) * work.group;
  const int rows = rows_of_block(batch.most_queries);
  auto blocks = static_cast<unsigned>(num_rows / rows + args.num_sequences);
  // No block has to look for its sequence.
  work.one_query = batch.most_queries == 1 && batch.num_few == args.num_sequences;
  if (work.one_query) {
    work.tiles = static_cast<int32_t>(ceil_div(work.group, rows));
    blocks = static_cast<unsigned>(args.num_sequences * work.tiles);
  }
  start(work, rows, dim3(blocks, kv_heads));
}

}  // namespace quire::ops::cuda
