// What the kernels of attention over the paged cache share: a launch, a block's rows, the cache.
#pragma once

#include <cmath>
#include <type_traits>

#include "ops/cuda/attention_limits.h"
#include "ops/cuda/device.cuh"
#include "ops/cuda/kv_values.cuh"
#include "ops/cuda/launch.h"
#include "types/ids.h"

namespace quire::ops::cuda {

constexpr int kWarps = 4;  // of a block
constexpr int kThreads = kWarps * kWarp;
// Of attention_few.cu: rows of a block, positions of a split.
constexpr int kFewRowsOfBlock = 16;
constexpr int kFewSplit = kSharedSpan;
constexpr float kLog2E = 1.44269504088896341f;  // exponents are of 2: a cheaper instruction

enum class Part { kAll, kFew, kMany };  // sequences that a launch takes

struct Attention {
  const float* queries;
  int64_t query_stride;
  float* out;
  const float* sinks;
  const uint8_t* keys;
  const uint8_t* values;
  int64_t head_bytes;
  int64_t block_stride;  // bytes
  const int32_t* query_offsets;
  const int32_t* context_lengths;
  const BlockId* block_tables;
  int64_t block_table_stride;
  DType dtype;
  int32_t num_sequences;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t group;  // heads of a kv head
  int32_t head_dim;
  int32_t value_dim;  // of a row's numbers so many are wanted; the rest may be left as it is
  int32_t block_size;
  int32_t window;
  bool both_ways;  // of paged_attention.cu alone
  bool values_are_keys;
  bool vectors_of_keys;    // 16 bytes of codes lie at addresses of 16 and within a token
  bool vectors_of_values;  // the same
  float query_factor;      // scale; times log2(e) without a soft cap
  float soft_cap;
  // The launch.
  Part part;
  int32_t split;        // positions of one
  int32_t num_splits;   // 0: whole
  int32_t splits_each;  // split: one after the other in a block
  bool one_query;       // of every sequence
  int32_t most_rows;    // of a sequence, for a kv head
  int32_t tiles;        // split, one_query: of rows a sequence
  int32_t few_queries;  // split: at most so many a sequence
  // Split, of attention_few.cu: who shares which split; nullptr: nobody.
  const SpanPlace* span_places;
  int32_t num_shared_spans;
  float* partial_sums;     // split: [num_sequences, few_queries, num_heads, num_splits, head_dim]
  float2* partial_states;  // [num_sequences, few_queries, num_heads, num_splits]: of Softmax
};

// The largest score so far, in powers of two, and the sum of exp2(score - maximum).
struct Softmax {
  float maximum;
  float sum;
};

// --- of the kernels with tensor cores: the numbers that those multiply, F16 or BF16

template <typename T>
__device__ inline T rounded(float x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else {
    return __float2bfloat16_rn(x);
  }
}
template <typename T>
__device__ inline float number(T x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half2float(x);
  } else {
    return __bfloat162float(x);
  }
}

// Powers of two that a score may be above what exponents are relative to.
constexpr float kMostAbove = 8;

// `maximum`: the largest score of a tile. Exponents are relative to total.maximum, which follows it only when it is far
// above: what was summed before is to be multiplied by what is returned, 1 nearly always.
__device__ inline float follow(Softmax& total, float maximum) {
  const bool first = total.maximum == -INFINITY && maximum > -INFINITY;
  if (!first && !(maximum > total.maximum + kMostAbove)) return 1;
  const float factor = exp2f(total.maximum - maximum);
  total = {maximum, total.sum * factor};
  return factor;
}

// --- of those in splits

// Part of a row folded into what came before it: weights of the two.
struct Fold {
  float before;
  float part;
};
__device__ inline Fold fold(Softmax& total, const Softmax& part) {
  const float maximum = fmaxf(total.maximum, part.maximum);
  const Fold weights = {total.maximum == maximum ? 1.0f : exp2f(total.maximum - maximum),
                        part.maximum == maximum ? 1.0f : exp2f(part.maximum - maximum)};
  total = {maximum, fmaf(total.sum, weights.before, __fmul_rn(part.sum, weights.part))};
  return weights;
}

// The sequence and rows of a block. Row r is query r / group, head kv_head * group + r % group.
struct Rows {
  int32_t sequence;
  int32_t first;        // of the block's rows
  int32_t num_rows;     // of the sequence
  int32_t first_token;  // of the sequence
  int32_t first_position;
};

__device__ inline int32_t first_seen(const Attention& args, int32_t position) {
  return args.window > 0 ? max(0, position - args.window + 1) : 0;
}

__device__ inline int32_t last_seen(const Attention& args, int32_t position, int32_t sequence) {
  if (!args.both_ways) return position;
  const int32_t last = args.context_lengths[sequence] - 1;
  return args.window > 0 ? min(last, position + args.window - 1) : last;
}

// The last of `count` sequences for which before(sequence) <= index. REQUIRES: before(0) <= index; before() rises.
template <typename Function>
__device__ int32_t last_at_most(int32_t count, int64_t index, Function before) {
  int32_t low = 0;
  int32_t high = count;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (before(middle) <= index) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Rows of a tile of one sequence. false: there are none for this launch.
__device__ inline bool find_rows_of(const Attention& args, int32_t sequence, int64_t tile, int rows_per_block,
                                    Rows& rows) {
  rows.sequence = sequence;
  rows.first_token = args.query_offsets[sequence];
  const int32_t num_queries = args.query_offsets[sequence + 1] - rows.first_token;
  if (args.part != Part::kAll && (num_queries <= kFewQueries) != (args.part == Part::kFew)) return false;
  rows.num_rows = num_queries * args.group;
  rows.first = static_cast<int32_t>(tile) * rows_per_block;
  rows.first_position = args.context_lengths[sequence] - num_queries;
  return rows.first < rows.num_rows;
}

// false: there is nothing to do for this block.
__device__ inline bool find_rows(const Attention& args, int rows_per_block, Rows& rows) {
  if (args.num_splits > 0 || args.one_query) {
    const auto block = static_cast<int32_t>(blockIdx.x);
    return find_rows_of(args, block / args.tiles, block % args.tiles, rows_per_block, rows);
  }
  // A sequence's tiles begin behind those that the rows before it can take. Long contexts come first.
  const int64_t block = gridDim.x - 1 - blockIdx.x;
  const auto before = [&](int32_t sequence) {
    return int64_t{args.query_offsets[sequence]} * args.group / rows_per_block + sequence;
  };
  const int32_t sequence = last_at_most(args.num_sequences, block, before);
  return find_rows_of(args, sequence, block - before(sequence), rows_per_block, rows);
}

// The splits of `length` positions that a block whose rows see positions [first, last] goes through: all, or those that
// are its own. false: its rows see none of them.
__device__ inline bool find_splits(const Attention& args, int32_t length, int32_t first, int32_t last,
                                   int32_t& first_split, int32_t& last_split) {
  first_split = first / length;
  last_split = last / length;
  if (args.num_splits > 0) {
    const int32_t own = static_cast<int32_t>(blockIdx.z) * args.splits_each;
    first_split = max(first_split, own);
    last_split = min(last_split, own + args.splits_each - 1);
  }
  return first_split <= last_split;
}

// Where position p of a sequence lies: its block's part of the kv head, and its place in the block.
struct Slot {
  const uint8_t* head;
  int32_t token;
};
__device__ inline Slot slot_of(const Attention& args, const uint8_t* memory, const BlockId* table, int32_t position) {
  const int64_t block = table[position / args.block_size];
  return {memory + block * args.block_stride + blockIdx.y * args.head_bytes, position % args.block_size};
}

// The scale of I8 of a position.
__device__ inline float scale_at(const Attention& args, const uint8_t* memory, const BlockId* table, int32_t position) {
  const Slot slot = slot_of(args, memory, table, position);
  return load_scale(slot.head + int64_t{args.head_dim} * args.block_size + slot.token * int64_t{4});
}

// What a row's sums are multiplied by in the end.
__device__ inline float final_factor(const Attention& args, const Softmax& total, int32_t head) {
  if (args.sinks == nullptr) return 1.0f / total.sum;
  const float sink = __fmul_rn(args.sinks[head], kLog2E);
  const float maximum = fmaxf(total.maximum, sink);
  const float weight = total.maximum == maximum ? 1.0f : exp2f(total.maximum - maximum);
  return weight / fmaf(total.sum, weight, exp2f(sink - maximum));
}

// [sequence, query, head, split] of the partial results.
__device__ inline int64_t partial_index(const Attention& args, int32_t sequence, int32_t query, int32_t head,
                                        int32_t split) {
  return ((int64_t{sequence} * args.few_queries + query) * args.num_heads + head) * args.num_splits + split;
}

// Whether the card has so much shared memory for a block.
bool has_shared(int bytes);

// Starts a kernel whose blocks have so much of it.
template <typename Kernel>
void start_attention(Kernel* kernel, int shared_bytes, const Attention& work, dim3 grid, int threads,
                     cudaStream_t stream) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
             "shared memory of attention");
  launch(kernel, grid, static_cast<unsigned>(threads), static_cast<size_t>(shared_bytes), stream, work);
}

// Whether two neighbours of the queries can be read at once.
inline bool has_pairs_of_queries(const Attention& work) {
  return reinterpret_cast<uintptr_t>(work.queries) % sizeof(float2) == 0 && work.query_stride % 2 == 0;
}

// Any sequences, with tensor cores: attention_few.cu, and of it attention_decode.cu. REQUIRES: has_few_kernel(),
// has_decode_kernel(): the cache, the head size and the card.
bool has_few_kernel(const Attention& work);
void attend_few(const Attention& work, dim3 grid, cudaStream_t stream);
bool has_decode_kernel(const Attention& work);
// Which of the two sources has a batch's heads.
inline bool has_decode_heads(const Attention& work) {
  return !work.values_are_keys && work.head_dim <= 128;
}
void attend_decode(const Attention& work, dim3 grid, cudaStream_t stream);
// Caches of 8-bit floats that no sequence reads with more than 8 rows, none of which it shares: attention_codes.cu.
// attend_decode() leaves these to it.
bool has_codes_kernel(const Attention& work);
void attend_codes(const Attention& work, dim3 grid, cudaStream_t stream);
// Where values are keys, in 16 bits, of up to 576 numbers of which up to 512 are wanted: attention_latent.cu.
bool has_latent_kernel(const Attention& work);
void attend_latent(const Attention& work, dim3 grid, cudaStream_t stream);

// Sequences of more than kFewQueries queries (Part::kMany) or all, with tensor cores: attention_tiles.cu. False: not of
// this cache or head size, or not on this card; nothing was done. total_rows: of all sequences for a kv head.
bool attend_tiles(const Attention& work, int64_t total_rows, cudaStream_t stream);

}  // namespace quire::ops::cuda
