// FlashInfer's attention (Ye et al., 2025) over pages of [kv heads, page size, head size], without
// FlashInfer's types: its headers are slow to compile and define the same names twice, so that each kernel is a source
// of its own. FA2 is FlashAttention-2's way (Dao, 2023), for every card; FA3 is FlashAttention-3's (Shah et al., 2024),
// for Hopper alone.
//
// What FlashInfer has to say against a plan or a launch ends the process with its words.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/mirrored.h"

namespace quire::ops::cuda {

// --- plan.cu: on the host, for prompts

// Prompts as they are planned, their queries one sequence's behind the other's.
struct Prompts {
  const int32_t* query_offsets = nullptr;    // [num_sequences + 1], from 0
  const int32_t* page_offsets = nullptr;     // [num_sequences + 1], from 0: where a sequence's pages begin
  const int32_t* context_lengths = nullptr;  // [num_sequences]
  int32_t num_sequences = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t page_size = 0;
  int32_t window = 0;  // 0: none
};

// The plan as FlashInfer numbers it, and what it takes.
using PlanNumbers = std::vector<int64_t>;
struct PlanBytes {
  size_t integers = 0;   // on the card, and pinned
  size_t workspace = 0;  // at an address of 16, of every launch: partial results of contexts that are split
};

// Rows, which are queries times heads of a kv head, that a block of FA2 takes of prompts.
constexpr int32_t fa2_tile(int32_t head_dim) {
  return head_dim < 256 ? 128 : 64;
}
// Sequences of at most so many rows are short runs: FlashInfer takes smaller tiles for them.
constexpr int32_t most_short_rows(int32_t head_dim) {
  return head_dim < 256 ? 64 : 16;
}
// REQUIRES: there is no short run among them.
PlanBytes fa2_plan_bytes(const Prompts& prompts);
// Fills `pinned` and copies it to `integers` in its turn on the stream.
PlanNumbers plan_fa2(const Prompts& prompts, const PlanBytes& bytes, void* integers, void* pinned, cudaStream_t stream);

PlanBytes fa3_plan_bytes(const Prompts& prompts);
// Whether it is the kind of plan that the kernels were compiled for: all but those of half a million queries.
bool has_fa3_schedule(const Prompts& prompts);
PlanNumbers plan_fa3(const Prompts& prompts, const PlanBytes& bytes, void* integers, void* pinned, cudaStream_t stream);

// --- On the card, one plan by one block: a graph plans anew whenever it is replayed.

// A batch that is planned: PagedAttentionArgs has its numbers.
struct CardBatch {
  Mirrored<int32_t> query_offsets;
  Mirrored<int32_t> context_lengths;  // the host reckons with the longest alone
  int32_t num_sequences = 0;
  int32_t table_stride = 0;  // of block tables
  int32_t page_size = 0;
  int32_t num_kv_heads = 0;
  int32_t group = 1;      // heads of a kv head
  int32_t most_rows = 0;  // of a short run
  int32_t window = 0;     // 0: none
  int32_t longest_context = 0;
};

inline constexpr int32_t kPiece = 128;  // contexts are cut at multiples of so many positions

// --- short_runs.cu: of sequences of few queries

inline constexpr int32_t kShortTile = 16;  // rows that a block of FA2 takes of them

// Whether a sequence is one: all that is decoded is, however many heads there are.
constexpr bool is_short(int32_t queries, int32_t group, int32_t most_rows) {
  return queries > 0 && (queries == 1 || queries * group <= most_rows);
}

// What the host knows of the plan.
struct ShortSize {
  int32_t num_runs = 0;
  int32_t num_tokens = 0;
  int32_t first_token = 0;  // of the batch
  bool together = false;    // their tokens are one run of the batch's
  int32_t num_items = 0;    // blocks for each kv head
  int32_t num_parts = 0;    // rows of partial results, of all heads, at most
};
// num_runs is 0 where there are no short runs.
ShortSize size_of_short_runs(const CardBatch& batch);

// The plan's numbers, on the card.
struct ShortPlan {
  int32_t* query_offsets = nullptr;      // [num_runs + 1]
  int32_t* page_offsets = nullptr;       // [num_runs + 1]: where a run's row of the block tables begins
  int32_t* last_page_lengths = nullptr;  // [num_runs]: of a row of the tables that were full; mostly negative
  int32_t* context_lengths = nullptr;    // [num_runs]
  int32_t* tokens = nullptr;             // [num_tokens]: of the batch
  int32_t* item_runs = nullptr;          // [num_items], and of each which tile of its run and piece of its context
  int32_t* item_tiles = nullptr;
  int32_t* item_pieces = nullptr;
  int32_t* item_ends = nullptr;      // [num_runs]
  bool* item_valid = nullptr;        // [num_items]
  int32_t* part_offsets = nullptr;   // [num_runs + 1]
  int32_t* merge_offsets = nullptr;  // [num_tokens + 1]
  int32_t* piece_length = nullptr;
};
// Places for a plan's numbers from `memory` on, at an address of 16. Returns how many bytes they take.
size_t lay_out(const ShortSize& size, void* memory, ShortPlan& plan);
// Makes the plan, in its turn on the stream.
void plan_on_card(const CardBatch& batch, const ShortSize& size, const ShortPlan& plan, cudaStream_t stream);

// --- latent_plan.cu, latent_*.cu, fa3_latent_*.cu: latent attention (DeepSeek-AI, 2024) of all sequences of a batch

// A key is 512 numbers of a latent, which are the value too, and 64 of a position.
inline constexpr int32_t kLatentDim = 512;
inline constexpr int32_t kLatentKeyDim = 576;

struct LatentSize {
  int32_t num_sequences = 0;
  int32_t num_runs = 0;  // that have queries
  int32_t num_tokens = 0;
  int32_t blocks_of_tile = 1;  // 64 rows each
  int32_t num_teams = 0;       // of so many blocks: all that the card runs at once
  int32_t num_items = 0;       // at most
};
LatentSize size_of_latent(const CardBatch& batch);

// The plan's numbers, on the card.
struct LatentPlan {
  int32_t* tile_ends = nullptr;     // [sequences]
  int32_t* item_offsets = nullptr;  // [num_teams + 1]: where a team's begin
  // [num_items]
  int32_t* query_offsets = nullptr;
  int32_t* page_offsets = nullptr;
  int32_t* parts = nullptr;  // rows of partial results from here on; -1: the item is all of its tile
  int32_t* num_queries = nullptr;
  int32_t* context_lengths = nullptr;
  int32_t* first_rows = nullptr;  // of the sequence's
  int32_t* begins = nullptr;      // positions
  int32_t* ends = nullptr;
  // [num_teams * blocks_of_tile]: rows of the batch that a block merges, and of the parts from where to where and how
  // far apart.
  int32_t* merge_begins = nullptr;
  int32_t* merge_ends = nullptr;
  int32_t* part_begins = nullptr;
  int32_t* part_ends = nullptr;
  int32_t* part_strides = nullptr;
};
size_t lay_out(const LatentSize& size, void* memory, LatentPlan& plan);
void plan_on_card(const CardBatch& batch, const LatentSize& size, const LatentPlan& plan, cudaStream_t stream);

// All pointers are the card's.
struct LatentLaunch {
  const LatentPlan* plan = nullptr;
  LatentSize size;
  int32_t positions = 0;     // of FA2's tiles: latent_positions()
  void* queries = nullptr;   // [num_tokens, num_heads, kLatentKeyDim], of the cache's dtype
  void* keys = nullptr;      // [pages, page_size, kLatentKeyDim], pages page_stride apart
  int32_t* pages = nullptr;  // [sequences, table_stride]
  void* out = nullptr;       // [num_tokens, num_heads, kLatentDim], of the cache's dtype
  void* parts = nullptr;     // [latent_parts(size), kLatentDim], of the cache's dtype
  void* states = nullptr;    // [latent_parts(size)] floats
  int32_t num_heads = 0;
  int32_t page_size = 0;
  int64_t page_stride = 0;  // numbers
  float scale = 1.0f;
};
// Rows of partial results at most.
int64_t latent_parts(const LatentSize& size);
using LaunchLatent = void (*)(const LatentLaunch& launch, cudaStream_t stream);
// FA3's way on Hopper, or FA2's; nullptr: none.
LaunchLatent latent_kernel(DType cache, bool is_hopper);
// What the card's shared memory has room for; 0: for neither.
inline constexpr int32_t kManyLatentPositions = 64;
inline constexpr int32_t kFewLatentPositions = 32;
int32_t latent_positions();

// --- fa2_*.cu, fa3_*.cu

// What queries are rounded to.
constexpr DType query_dtype(DType cache) {
  return cache == DType::kF8E4M3 ? DType::kF16 : cache;
}

// All pointers are the card's.
struct AttentionLaunch {
  const PlanNumbers* plan = nullptr;  // of prompts
  void* plan_integers = nullptr;
  const ShortPlan* short_plan = nullptr;  // of short runs, instead
  int32_t num_items = 0;
  int32_t num_parts = 0;
  void* workspace = nullptr;
  void* queries = nullptr;  // [num_tokens, num_heads, head_dim], of query_dtype()
  void* keys = nullptr;     // [pages, num_kv_heads, page_size, head_dim], pages page_stride apart
  void* values = nullptr;
  void* out = nullptr;               // as the queries: of FA2 float32, of FA3 the cache's dtype
  int32_t* query_offsets = nullptr;  // as in Prompts or ShortPlan
  int32_t* page_offsets = nullptr;
  int32_t* pages = nullptr;              // [page_offsets[num_sequences]]
  int32_t* last_page_lengths = nullptr;  // [num_sequences]: tokens in each one's last page
  int32_t num_sequences = 0;
  int64_t num_tokens = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t page_size = 0;
  int64_t page_stride = 0;  // numbers
  int32_t window = 0;
  float scale = 1.0f;
  float soft_cap = 0;  // 0: none
};
using LaunchAttention = void (*)(const AttentionLaunch& launch, cudaStream_t stream);

// Whether this program was built for Hopper.
bool has_fa3();
// The kernels that were compiled; nullptr: none of this shape.
LaunchAttention fa2_kernel(DType cache, int32_t head_dim, bool has_soft_cap);
LaunchAttention fa3_kernel(DType cache, int32_t head_dim);

// --- rows.cu

// Tokens that a batch has scattered, [tokens[i]] of rows of `size` floats `stride` apart, one behind the other as F16
// or BF16. tokens: nullptr for all of them.
void gather_rounded(const float* from, int64_t stride, const int32_t* tokens, int64_t num_tokens, int64_t size,
                    DType to, void* out, cudaStream_t stream);
// The way back: rows of F32, F16 or BF16 to rows of floats, out_stride apart.
void scatter_floats(const void* from, DType dtype, const int32_t* tokens, int64_t num_tokens, int64_t size, float* out,
                    int64_t out_stride, cudaStream_t stream);

}  // namespace quire::ops::cuda
