// The kernels of a card, each in its turn on a stream. Arguments were checked; all their pointers are the device's, of
// a Mirrored the device's side. Nothing here waits or allocates. Sources: one *.cu for what belongs together.
#pragma once

#include <cuda_runtime.h>

#include "ops/activation.h"
#include "ops/add.h"
#include "ops/choose_tokens.h"
#include "ops/clamped_swiglu.h"
#include "ops/copy_blocks.h"
#include "ops/copy_heads.h"
#include "ops/edit_logits.h"
#include "ops/embedding.h"
#include "ops/gate.h"
#include "ops/gather_rows.h"
#include "ops/kv_cache.h"
#include "ops/layer_norm.h"
#include "ops/low_rank.h"
#include "ops/moe_combine.h"
#include "ops/moe_routing.h"
#include "ops/paged_attention.h"
#include "ops/place_tokens.h"
#include "ops/prepare_heads.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/scale.h"
#include "ops/top_logprobs.h"
#include "ops/xielu.h"

namespace quire::ops::cuda {

// --- elementwise.cu, norms.cu, moe.cu

void activate(const ActivationArgs& args, cudaStream_t stream);
void add(const AddArgs& args, cudaStream_t stream);
void clamped_swiglu(const ClampedSwigluArgs& args, cudaStream_t stream);
void xielu(const XieluArgs& args, cudaStream_t stream);
void copy_heads(const CopyHeadsArgs& args, cudaStream_t stream);
void gate(const GateArgs& args, cudaStream_t stream);
void gather_rows(const GatherRowsArgs& args, cudaStream_t stream);
void place_tokens(const PlaceTokensArgs& args, cudaStream_t stream);
void layer_norm(const LayerNormArgs& args, cudaStream_t stream);
void rms_norm(const RmsNormArgs& args, cudaStream_t stream);
void rope(const RopeArgs& args, cudaStream_t stream);
void scale(const ScaleArgs& args, cudaStream_t stream);
void combine_experts(const MoeCombineArgs& args, cudaStream_t stream);

// choose_tokens.cu; scratch: some 60 KiB a row that are at work together, up to 300 of few. REQUIRES: room for one.
void choose_tokens(const ChooseTokensArgs& args, void* scratch, int64_t scratch_bytes, cudaStream_t stream);
// edit_logits.cu. any_mask, any_edit: whether any row has one.
void edit_logits(const EditLogitsArgs& args, bool any_mask, bool any_edit, cudaStream_t stream);
void top_logprobs(const TopLogprobsArgs& args, cudaStream_t stream);

// scratch: route_scratch_bytes().
int64_t route_scratch_bytes(int64_t num_tokens, int32_t num_experts, int32_t experts_per_token);
void route(const MoeRoutingArgs& args, void* scratch, cudaStream_t stream);

// --- kv_cache.cu, paged_attention.cu

// Keys by token alone, as attention reads them.
void write_kv(const KvWriteArgs& args, cudaStream_t stream);
void prepare_heads(const PrepareHeadsArgs& args, cudaStream_t stream);
// All of a layer's in one launch. The caches are the card's memory or the host's that it reaches. False: their
// addresses are no multiples of 16; nothing was done.
bool copy_blocks(const CopyBlocksArgs& args, cudaStream_t stream);
// Scratch for partial results of long contexts: attention_scratch_bytes() of any batch of at most num_tokens tokens.
int64_t attention_scratch_bytes(int64_t num_tokens, int32_t num_heads, int32_t head_dim, int64_t max_context);
// may_round: sequences of more than 8 queries may be computed with tensor cores, which round queries and weights to the
// 16 bits that a cache of less than 32 has. only_few: those sequences were computed already (prompt_attention.h).
void attend(const PagedAttentionArgs& args, bool may_round, void* scratch, int64_t scratch_bytes, cudaStream_t stream,
            bool only_few = false);

// --- stored_rows.cu, few_rows.cu

// Formats that kernels read as they are stored: F32, F16, BF16, F8_E4M3 and F8_E4M3_128 rows with their floats behind
// each, and the blocks of Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4 and coded weights.
bool has_decoder(DType dtype);

void embed(const EmbeddingArgs& args, cudaStream_t stream);  // REQUIRES: has_decoder(args.table.dtype)

// A weight on the device. Rows lie row_bytes apart, a multiple of 16 beyond what a row takes, so that every row begins
// at an address of 16: [rows, columns], codes and scales within a row as tensor/dtype.h says; rows of 8-bit floats
// end with their own (ops/quantise.h; unaligned where columns is no multiple of 4).
struct StoredMatrix {
  const uint8_t* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_bytes = 0;
};

// out[m][n] = sum_k x[m][k] * weight[n][k] + bias[n], in float32: weights are read once, at the speed of memory, for up
// to kFewRows rows. Any num_rows is right, more than kFewRows reads the weights again for each kFewRows.
inline constexpr int64_t kFewRows = 8;
// What becomes of products in pairs: the weight's first half of rows are gates, the second what they let through, and
// out[m][n] = f(gate) * up for n under half of the rows.
struct Gate {
  bool on = false;
  Activation function = Activation::kSilu;
};
struct FewRowsWork {
  StoredMatrix weight;
  const float* x = nullptr;
  int64_t x_stride = 0;
  int64_t num_rows = 0;
  const float* bias = nullptr;  // or nullptr
  float* out = nullptr;
  int64_t out_stride = 0;
  Gate gate;
};
void multiply_few_rows(const FewRowsWork& work, cudaStream_t stream);

// The same by tensor cores, for some 3 to 64 rows: a code of the weight is decoded once for up to 64 of them
// (decoded_tiles.cuh). Weights are multiplied in F16, rounded where they are no F16, but BF16 as they are; x is rounded
// alike, rows beyond F16's range divided by a power of two. How columns are split, and so the order of a row's sums,
// depends on num_rows. scratch: decoded_scratch_bytes(), better some times num_rows * rows floats more; at an address
// of 16. REQUIRES: has_decoded_tiles().
struct DecodedWork {
  StoredMatrix weight;
  Rows x;
  int64_t x_stride = 0;
  int64_t num_rows = 0;
  const float* bias = nullptr;  // or nullptr
  OutRows out;
  int64_t out_stride = 0;
  void* scratch = nullptr;
  int64_t scratch_bytes = 0;
};
bool has_decoded_tiles(DType dtype);
int64_t decoded_scratch_bytes(int64_t num_rows, const StoredMatrix& weight, DType out);
void multiply_decoded(const DecodedWork& work, cudaStream_t stream);

// The same of groups with weights of their own; weights' data pointers are in device memory. `offsets` on the device
// ([num_groups + 1]; nullptr: num_rows / num_groups rows each); strides as in ops/grouped_linear.h.
struct GroupedRowsWork {
  StoredMatrix shape;                       // of every weight; data is unused
  const uint8_t* const* weights = nullptr;  // [num_groups], on the device
  int32_t num_groups = 0;
  const int32_t* offsets = nullptr;
  int64_t num_rows = 0;  // of all groups
  const float* x = nullptr;
  int64_t x_stride = 0;
  int64_t x_group_stride = 0;
  const float* bias = nullptr;  // [num_groups, bias_stride] or nullptr
  int64_t bias_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int64_t out_group_stride = 0;
  Gate gate;  // of multiply_grouped_rows()
};
void multiply_grouped_rows(const GroupedRowsWork& work, cudaStream_t stream);

// elementwise.cu: out of each group times its factor [num_groups], and its bias or nullptr added.
void multiply_groups(const GroupedRowsWork& work, const float* factors, const float* bias, cudaStream_t stream);

// The same with tensor cores, of weights of 16 bits that are read once for every 32 rows of a group: x is rounded as
// the weight is. REQUIRES: has_grouped_halves(): format, columns, addresses.
bool has_grouped_halves(const GroupedRowsWork& work);
void multiply_grouped_halves(const GroupedRowsWork& work, cudaStream_t stream);

// The same of many rows, with tensor cores: weights are read once for every 64 or 128 rows. x is rounded as the weight
// is, F16 or BF16; other weights are rounded to F16, x too, rows beyond its range divided by a power of two. Where
// there is no such kernel (Q2_K, Q3_K, IQ4_XS), both are multiplied with 10 bits of fraction. scratch: better room for
// num_rows rows of 16 bits, columns to the next 1,024; at an address of 16. REQUIRES: has_tiles().
bool has_tiles(DType dtype);
void multiply_grouped_tiles(const GroupedRowsWork& work, void* scratch, int64_t scratch_bytes, cudaStream_t stream);
// Of 8-bit floats by tensor cores of 8 bits: x is rounded to codes with scales of rows or of 128 columns, as the weight
// has them, as many rows at once as the scratch has room for. False: not by this card (Hopper, built for 9.0a), format,
// columns or strides; nothing was done.
bool multiply_grouped_codes(const GroupedRowsWork& work, void* scratch, int64_t scratch_bytes, cudaStream_t stream);

// low_rank.cu: rows' adapters by LowRankArgs::rows. scratch: room for most_ranks floats of each head, better as many
// times as there are rows; at an address of 16. one_order: a row's sums have one order however many rows there are.
void add_low_rank(const LowRankArgs& args, bool one_order, void* scratch, int64_t scratch_bytes, cudaStream_t stream);

// Rows [first_row, first_row + num_rows) of a weight as F32 or F16, [num_rows, columns] dense.
void expand_rows(const StoredMatrix& weight, int64_t first_row, int64_t num_rows, OutRows out, cudaStream_t stream);
// Rows of floats, dense, to a format of ops/quantise.h, rows row_bytes apart. REQUIRES: columns are whole blocks.
void quantise_rows(DType dtype, const float* values, int64_t num_rows, int64_t columns, uint8_t* out, int64_t row_bytes,
                   cudaStream_t stream);
// Where rows of floats lie: `stride` apart or, in groups of `each`, so within a group and groups group_stride apart.
struct RowPlaces {
  int64_t stride = 0;
  int64_t each = 0;  // 0: no groups
  int64_t group_stride = 0;

  __host__ __device__ int64_t at(int64_t row) const {
    return each == 0 ? row * stride : row / each * group_stride + row % each * stride;
  }
};
// x rounded to nearest -> [num_rows, columns] of F16 or BF16, dense.
void round_rows(const float* x, const RowPlaces& places, int64_t num_rows, int64_t columns, DType to, void* out,
                cudaStream_t stream);
// Rows of one dtype to another's, rounded to nearest.
void convert_rows(const Rows& in, int64_t in_stride, int64_t num_rows, int64_t columns, const OutRows& out,
                  int64_t out_stride, cudaStream_t stream);
// out[row][i] = in[row][order[i]] * factor, dense; order nullptr: in[row][i].
void form_rows(const float* in, int64_t in_stride, int64_t num_rows, int64_t columns, const int32_t* order,
               float factor, float* out, cudaStream_t stream);
// x to F16, whatever the numbers: each row is divided by a power of two where it would not have room. Those are
// factors [num_rows], 1 of most rows.
void round_rows_in_range(const float* x, int64_t x_stride, int64_t num_rows, int64_t columns, void* out, float* factors,
                         cudaStream_t stream);
// out[m][n] = in[m][n] * columns[n] * rows[m] + bias[n]; what is nullptr has no part in it, and in may be out.
struct Finish {
  const float* rows = nullptr;
  const float* columns = nullptr;
  const float* bias = nullptr;
};
void finish_rows(const Finish& finish, int64_t num_rows, int64_t columns, const Rows& in, int64_t in_stride,
                 const OutRows& out, int64_t out_stride, cudaStream_t stream);
// Rows of F8_E4M3 for a product: x / scale to nearest, with a scale a row that makes its largest magnitude 448, as
// ops/quantise.h rounds weights. Codes [num_rows, codes_stride], zero behind `columns`; scales [num_rows].
void round_rows_to_f8(const Rows& x, int64_t x_stride, int64_t num_rows, int64_t columns, uint8_t* codes,
                      int64_t codes_stride, float* scales, cudaStream_t stream);
// Back to floats, dense.
void widen_coded_rows(const uint8_t* codes, const float* scales, int64_t num_rows, int64_t columns, float* out,
                      cudaStream_t stream);
// As round_rows_to_f8() with a scale for every kScaleColumns of a row: codes [padded_rows, columns], scales
// [columns / kScaleColumns, padded_rows]; rows from num_rows on are zeros. REQUIRES: columns is a multiple of that.
void round_blocks_to_f8(const Rows& x, int64_t x_stride, int64_t num_rows, int64_t padded_rows, int64_t columns,
                        uint8_t* codes, float* scales, cudaStream_t stream);
// The floats at the ends of a weight's rows -> [rows]. REQUIRES: F8_E4M3.
void gather_row_scales(const StoredMatrix& weight, float* scales, cudaStream_t stream);

}  // namespace quire::ops::cuda
