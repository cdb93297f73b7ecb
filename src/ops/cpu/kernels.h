// What every instruction set offers: one table of functions a set, filled by the *.kernels.cpp files, which are
// compiled once for each set. Nothing but plain data and function pointers crosses this line, so that no inline
// function compiled for a newer processor can end up in code that runs on an older one.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"
#include "types/activation.h"
#include "types/ids.h"

namespace quire::ops::cpu {

// The index of a weight format in the table: DType's value.
inline constexpr int kNumFormats = kNumDTypes;

// Columns (output features) of a weight panel, and of the tiles it is made of: see packed_panels.h for the layouts.
inline constexpr int kPanelColumns = 32;
inline constexpr int kTileColumns = 16;
// What kernels read out of a panel of F8_E4M3 times this is the code's value: the code is read as a half, whose
// exponent has another bias.
inline constexpr float kF8E4M3PanelFactor = 256.0f;
// Floats of scratch that a linear kernel needs: a tile's weights over 1024 steps.
inline constexpr int kLinearScratchFloats = 1024 * kTileColumns;

// What the rows of a matrix product are made of: floats, floats rounded to whole numbers with a scale for every 16
// (bytes) or 32 (words) of them, pairs of floats rounded to points of a lattice (linear_lattice.kernels.cpp), or
// bfloat16, whose products are of pairs.
enum Activations : int { kFloatRows, kByteRows, kWordRows, kLatticeRows, kBFloat16Rows };
inline constexpr int kNumActivations = 5;

inline constexpr int64_t kLatticeGroupBytes = 64;  // of 32 values, at most

// Bytes of a row of k values.
constexpr int64_t coded_row_bytes(Activations activations, int64_t k) {
  switch (activations) {
    case kFloatRows:
      return k * 4;
    case kByteRows:
      return k / 16 * 8 + k;
    case kWordRows:
      return k / 16 * 8 + 2 * k;
    case kLatticeRows:
      return k / 32 * kLatticeGroupBytes;
    case kBFloat16Rows:
      return (k + 1) / 2 * 4;
  }
  return 0;
}

// Memory from `begin` to `end`.
struct MemoryRange {
  const uint8_t* begin;
  const uint8_t* end;
};

// What a thread fetches into its second cache while it computes a product that leaves memory idle: none of the ranges
// is empty.
struct FetchQueue {
  MemoryRange now;          // what is left of the range under way; empty: nothing is left at all
  const MemoryRange* next;  // the ranges behind it
  const MemoryRange* last;
  float lines;  // of 64 bytes, for each row, tile of columns and 32 steps of k
};

// out[m][n] = bias[n] + sum_k x[m][k] * w[k][n] for some rows and some neighbouring panels.
struct LinearTile {
  const uint8_t* rows;  // num_rows of them, row_bytes apart: k floats, or what code_row made of them
  int64_t row_bytes;
  int64_t num_rows;
  const uint8_t* panels;  // num_panels of them, panel_bytes apart, 32-byte aligned
  int64_t panel_bytes;
  int64_t num_panels;
  int64_t k;
  const float* bias;  // of the first panel's first column, or nullptr
  float* out;         // first row, first panel's first column; rows out_stride apart
  int64_t out_stride;
  int64_t columns;    // valid columns from there on, <= num_panels * kPanelColumns
  float* scratch;     // kLinearScratchFloats, 64-byte aligned
  FetchQueue* fetch;  // of this thread; nullptr: there is nothing to fetch. Products of whole numbers heed it
};

// Rounds the key and the value of one token and kv head to a cache's format.
struct KvWrite {
  DType dtype;
  const float* key;    // [head_dim]
  const float* value;  // [head_dim]
  int32_t head_dim;
  int32_t block_size;
  int64_t token;    // within the block
  uint8_t* keys;    // of the kv head of the block: [head_dim, block_size]; of I8 the scales after it
  uint8_t* values;  // the same: [block_size, head_dim]
};

inline constexpr int32_t kMostConvKernel = 8;

// A causal convolution of some channels over a run of tokens (ops/short_conv.h).
struct ConvRun {
  const float* in;  // [num_tokens, num_channels], tokens in_stride apart
  int64_t in_stride;
  int64_t num_tokens;
  const float* before;  // [kernel - 1, num_channels]: the inputs of the tokens before the run
  int64_t num_channels;
  int32_t kernel;       // 2 to kMostConvKernel
  const float* weight;  // [kernel, num_channels], rows weight_stride apart
  int64_t weight_stride;
  const float* bias;  // or nullptr
  bool silu;
  float* out;  // [num_tokens, num_channels], tokens out_stride apart
  int64_t out_stride;
};

// Tokens of a RecurrenceRun, at most.
inline constexpr int64_t kRecurrenceTokens = 16;
inline constexpr int32_t kMostRecurrenceKey = 256;

// A linear recurrence of one head over some tokens (ops/recurrence.h).
struct RecurrenceRun {
  float* state;          // [key_dim, value_dim]
  const float* queries;  // [num_tokens, key_dim], tokens token_stride apart
  const float* keys;     // the same
  const float* values;   // [num_tokens, value_dim], the same
  int64_t token_stride;
  int64_t num_tokens;
  int32_t key_dim;  // up to kMostRecurrenceKey
  int32_t value_dim;
  const float* fades;  // [num_tokens], what is left of the state
  const float* gains;  // [num_tokens], of what is added
  bool corrects;       // that is what is missing at the key, else the value
  bool normalises;     // keys and queries to length one
  float norm_eps;
  float scale;  // of queries
  float skip;   // of values, added to the output
  float* out;   // [num_tokens, value_dim], tokens out_stride apart; nullptr: nobody asks
  int64_t out_stride;
};

// Query rows that attention kernels treat together share loads of keys and values.
inline constexpr int kAttentionTileTokens = 64;
inline constexpr int kAttentionScoreFloats = 6 * kAttentionTileTokens;
// Tokens of an AttentionWork, at most.
inline constexpr int kAttentionMaxTokens = 16;

// Online softmax of a run of tokens of one sequence, for some heads that share one kv head, over the cached positions
// [split_begin, split_end).
struct AttentionWork {
  const float* queries;  // [num_tokens, num_heads, head_dim], dense, already scaled
  int64_t num_tokens;
  int32_t num_heads;
  int64_t first_position;  // of token 0
  int32_t window;          // 0: all positions
  int64_t context;         // both ways: of the sequence; else 0: nothing behind a token is seen
  float soft_cap;          // of the scores; 0: none
  int64_t split_begin;
  int64_t split_end;
  DType dtype;            // of the cache
  const uint8_t* keys;    // block 0 of the kv head: [head_dim, block_size]; of I8 the scales after it
  const uint8_t* values;  // the same: [block_size, head_dim]
  int64_t block_stride;   // bytes from a block to the next
  const BlockId* block_table;
  int32_t block_size;
  int32_t head_dim;
  float* scores;  // kAttentionScoreFloats, 64-byte aligned
  // Of the work that this thread is likely to do next, to be fetched ahead: blocks of its kv head, its block table and
  // the first positions of it, none where next_begin == next_end.
  const uint8_t* next_keys;
  const uint8_t* next_values;
  const BlockId* next_block_table;
  int64_t next_begin;
  int64_t next_end;
  float* widened;  // 2 * kAttentionTileTokens * head_dim, 64-byte aligned: a tile's keys and values as floats
  // Results, all [num_tokens * num_heads]: largest score, sum of exp(score - maximum), and [.., head_dim] the sum of
  // values weighted by it. A row that sees nothing of the split: -inf, 0, zeros.
  float* maximum;
  float* sum;
  float* weighted;
};

// What a mixture of experts adds to one token: see ops/moe_combine.h.
struct MoeCombineWork {
  const float* experts;  // row 0
  const int32_t* rows;   // [experts_per_token]
  const float* weights;  // [experts_per_token]
  int32_t experts_per_token;
  const float* shared;  // or nullptr
  float shared_weight;
};

// out[m][r] = sum_k x[m][k] * down[r][k]: the first factor of an adapter (ops/low_rank.h).
struct LowRankShrink {
  const float* x;  // num_rows of them, x_stride apart
  int64_t x_stride;
  int64_t num_rows;
  DType dtype;
  const uint8_t* down;  // [num_ranks, k]
  int64_t k;
  int32_t num_ranks;
  float* out;  // rows out_stride apart
  int64_t out_stride;
};

// out[m][n] += scale * sum_r shrunk[m][r] * up[n][r]: the second factor, whole tiles of it.
struct LowRankExpand {
  const float* shrunk;  // num_rows of them, shrunk_stride apart
  int64_t shrunk_stride;
  int64_t num_rows;
  DType dtype;
  const uint8_t* up;  // as of ops::LowRankPart, of BF16 with paired ranks
  int32_t rank;
  float scale;
  const float* gain;  // [columns], as of ops::LowRankPart; nullptr: no gain and no shift
  const float* shift;
  int64_t columns;
  float* out;  // rows out_stride apart
  int64_t out_stride;
};

using LinearKernel = void (*)(const LinearTile& tile);
using CodeRowKernel = void (*)(const float* x, int64_t k, uint8_t* row);
// How a checkpoint says that rows are rounded to whole numbers of -128..127 (ops/input_form.h, RowRounding::kInt8).
struct OwnRounding {
  float scale;    // 0: of each group its largest magnitude over 127.5
  int64_t group;  // so many numbers share a scale, a multiple of 32; 0: all of a row
};
using CodeOwnRowKernel = void (*)(const OwnRounding& rounding, const float* x, int64_t k, uint8_t* row);
using DequantiseKernel = void (*)(const uint8_t* row, int64_t size, float* out);

struct Kernels {
  const char* name;
  bool native_bfloat16;  // products of bfloat16 are the processor's own, twice as fast as those of floats
  bool coarse_lattice;   // the cells of kLatticeRows are too large for the few products that decide most
  // By Activations and DType; nullptr: no kernel.
  LinearKernel linear[kNumActivations][kNumFormats];
  // Rounds a row of k floats for linear[activations][dtype]: coded_row_bytes().
  CodeRowKernel code_row[kNumActivations][kNumFormats];
  // The same by the checkpoint's own scales: the numbers that it says, exactly.
  CodeOwnRowKernel code_own_row[kNumActivations][kNumFormats];
  DequantiseKernel dequantise[kNumFormats];
  // Rounds a row of k floats to a format of ops/quantise.h, as stored.
  void (*quantise)(DType dtype, const float* x, int64_t k, uint8_t* row);
  // hidden += delta_scale * delta (when given), out = normalised hidden * weight: one group of one token.
  void (*rms_norm)(float* hidden, const float* delta, float delta_scale, const float* weight, float eps, int64_t size,
                   float* out);
  // hidden += delta (when given), out = normalised hidden * weight + bias (each when given): one token.
  void (*layer_norm)(float* hidden, const float* delta, const float* weight, const float* bias, float eps, int64_t size,
                     float* out);
  // One head: cosines and sines are [rotary_dim / 2].
  void (*rope)(float* head, int32_t rotary_dim, bool interleaved, const float* cosines, const float* sines);
  // out = f(in), times up where it is given.
  void (*activate)(Activation function, const float* in, const float* up, int64_t size, float* out);
  void (*add)(float* hidden, const float* delta, float delta_scale, int64_t size);
  // See ops/scale.h.
  void (*scale)(float* values, float factor, float soft_cap, float limit, int64_t size);
  void (*convolve)(const ConvRun& run);
  void (*recurrence)(const RecurrenceRun& run);
  void (*xielu)(float* values, float positive, float negative, float beta, float eps, int64_t size);
  void (*clamped_swiglu)(const float* gate, const float* up, float alpha, float limit, int64_t size, float* out);
  void (*moe_combine)(const MoeCombineWork& work, int64_t size, float* out);
  void (*low_rank_shrink)(const LowRankShrink& work);
  void (*low_rank_expand)(const LowRankExpand& work);
  void (*kv_write)(const KvWrite& write);
  void (*attention)(const AttentionWork& work);
  // Adds the partial softmaxes (maximum, sum, weighted) of some rows to their totals, in place.
  void (*attention_fold)(float* total_maximum, float* total_sum, float* total, const float* maximum, const float* sum,
                         const float* weighted, int64_t num_rows, int32_t head_dim);
  // out = weighted / sum
  void (*attention_finish)(const float* weighted, float sum, int32_t head_dim, float* out);
};

// The table of each set that this build has. REQUIRES: the processor has the set; filling the table may take its
// instructions.
namespace portable {
const Kernels& kernels();
}
#if defined(__x86_64__)
namespace avx2 {
const Kernels& kernels();
}
namespace avx512 {
const Kernels& kernels();
const Kernels& bfloat16_kernels();  // the same with AVX-512's products of bfloat16
}  // namespace avx512
#endif

}  // namespace quire::ops::cpu
