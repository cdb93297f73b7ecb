// Low-rank adapters (LoRA; Hu et al., 2021) of the rows of a batch: a row's product gets what its adapter adds,
//   out[m][n] += scale * sum_r up[n][r] * (sum_k down[r][k] * x[m][k])
// where different rows may have different adapters, and most may have none. Runs of a single row (many sequences that
// decode) and long ones (prompts) are the same call.
//
// The sums of a row are taken in one order that its adapter alone decides: a row's result is the same bits whatever
// rows stand beside it (on a card where batch-invariant results are asked for). Rows without a run are not touched and
// cost nothing.
//
// A device that computes in the host's memory is given runs; one with memory of its own reads there which factors a row
// has (LowRankRows), and is given no runs.
#pragma once

#include <cstdint>
#include <span>

#include "ops/rows.h"
#include "tensor/mirrored.h"
#include "types/ids.h"

namespace quire::ops {

// Columns that a tile of `up` has.
inline constexpr int64_t kLowRankColumns = 16;

// Bytes of a part's `up`: of BF16 with room for an even number of ranks.
constexpr int64_t low_rank_up_bytes(DType dtype, int64_t size, int32_t rank) {
  const int32_t ranks = dtype == DType::kBF16 ? (rank + 1) / 2 * 2 : rank;
  return (size + kLowRankColumns - 1) / kLowRankColumns * ranks * row_bytes(dtype, kLowRankColumns);
}

// The place of a column's number of one rank in an `up` whose ranks are paired, and in one whose are not.
constexpr int64_t low_rank_up_place(int64_t column, int64_t rank, int64_t ranks, bool paired) {
  const int64_t tile = column / kLowRankColumns;
  const int64_t in_tile = column % kLowRankColumns;
  if (!paired) return (tile * ranks + rank) * kLowRankColumns + in_tile;
  return ((tile * ((ranks + 1) / 2) + rank / 2) * kLowRankColumns + in_tile) * 2 + rank % 2;
}

// What an adapter adds to neighbouring columns of a product: to q, to k and to v of one that makes all three.
struct LowRankPart {
  // Tiles of 16 columns, zeros beyond the last: [ceil(size / 16), rank, 16]. Of BF16, where a device computes in the
  // host's memory, ranks are paired, so that a vector of pairs is one of columns: [ceil(size / 16), ceil(rank / 2), 16,
  // 2], behind the last of an odd number a zero.
  const void* up = nullptr;
  int64_t column = 0;  // of out
  int64_t size = 0;
  int32_t first = 0;  // of `down`'s rows
  int32_t rank = 0;
  float scale = 1;
  // Of a weight-decomposed adapter (DoRA; Liu et al., 2024), whose rows of weights get lengths of their own: out =
  // gain * (out + scale * sum) + shift, where shift gives back what gain takes off the bias. [size]; neither or both.
  const float* gain = nullptr;
  const float* shift = nullptr;
};

// Of one adapter and one product. Somebody else's memory, on the device.
struct LowRankFactors {
  DType dtype = DType::kF32;  // F32, F16, BF16: of `down` and every `up`
  int64_t in_features = 0;
  int32_t rank = 0;  // of all parts together
  // [rank, in_features]; of an embedding, of which a row wants the column of its id, [in_features, rank].
  const void* down = nullptr;
  std::span<const LowRankPart> parts;
  // Instead: `down` is the adapter's own weight, [out_features, in_features] (of an embedding [in_features,
  // out_features]), whose product the row becomes. `rank` is out_features, and there are no parts.
  bool replaces = false;
  // Of a weight that replaces some of the base's rows alone, which they are, ascending: `down` is [only.size(),
  // in_features] (of an embedding [only.size(), out_features]), and of a product `rank` is only.size().
  std::span<const int32_t> only = {};
};

// Rows [row, row + num_rows) have these.
struct LowRankRun {
  const LowRankFactors* factors = nullptr;
  int64_t row = 0;
  int64_t num_rows = 0;
  // Of heads side by side in a row, each of which has factors of its own: where this one's begins, in x and in out.
  int64_t x_column = 0;
  int64_t out_column = 0;
};

// In the place of runs, of a device with memory of its own: which factors a row has is read there, and all pointers are
// the device's, those within factors too. A recorded call (ops/recording.h) serves whatever adapters these name when it
// is replayed.
struct LowRankRows {
  // [tokens]: of each token of the batch its adapter's factors, a table of all its products; nullptr: it has none. A
  // product without factors has a rank of 0 there.
  const LowRankFactors* const* of_token = nullptr;
  const int32_t* tokens = nullptr;  // [num_rows]: row i is of token tokens[i]; nullptr: of token i
  int32_t entry = 0;                // this product's, of every table
  // Of experts: rows [offsets[e], offsets[e + 1]) have entry + e; nullptr: all rows have `entry`. [num_experts + 1]
  const int32_t* offsets = nullptr;
  int32_t num_experts = 1;
  // Of heads side by side in a row: head h has entry + h, and its columns begin at h * x_head and h * out_head.
  int32_t num_heads = 1;
  int64_t x_head = 0;
  int64_t out_head = 0;
  int64_t most_ranks = 0;     // no factors of these entries have more, but those that replace; 0: all do
  int64_t most_replaced = 0;  // about as many rows as a weight has that replaces; 0: there is likely none
  int64_t num_runs = 0;       // about how many neighbours of one adapter, or of none, the rows are; 0: as many as rows
};

struct LowRankArgs {
  const float* x = nullptr;  // [num_rows, in_features], rows x_stride apart; nullptr: `ids` say which column of `down`
  int64_t x_stride = 0;
  Mirrored<TokenId> ids;  // [num_rows], each in [0, in_features)
  int64_t num_rows = 0;
  std::span<const LowRankRun> runs;  // no column of out of a row in two of them
  LowRankRows rows = {};             // of a device with memory of its own, and no runs
  float* out = nullptr;              // [num_rows, out_features], rows out_stride apart
  int64_t out_stride = 0;
  int64_t out_features = 0;
};

void check(const LowRankArgs& args);

}  // namespace quire::ops
