// FlashInfer's attention of prompts (Ye et al., 2025) over pages of [kv heads, page size, head size], without
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

namespace quire::ops::cuda {

// Prompts as they are planned: on the host, their queries one sequence's behind the other's.
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

// Queries that a block of FA2 takes: the one tile that was compiled for a head size.
constexpr int32_t fa2_tile(int32_t head_dim) {
  return head_dim < 256 ? 128 : 64;
}
// Whether FlashInfer would choose that tile: it takes smaller ones for short prompts.
bool has_fa2_tile(const Prompts& prompts);
PlanBytes fa2_plan_bytes(const Prompts& prompts);
// Fills `pinned` and copies it to `integers` in its turn on the stream.
PlanNumbers plan_fa2(const Prompts& prompts, const PlanBytes& bytes, void* integers, void* pinned, cudaStream_t stream);

PlanBytes fa3_plan_bytes(const Prompts& prompts);
// Whether it is the kind of plan that the kernels were compiled for: all but those of half a million queries.
bool has_fa3_schedule(const Prompts& prompts);
PlanNumbers plan_fa3(const Prompts& prompts, const PlanBytes& bytes, void* integers, void* pinned, cudaStream_t stream);

// All pointers are the card's.
struct PromptsLaunch {
  const PlanNumbers* plan = nullptr;
  void* plan_integers = nullptr;
  void* workspace = nullptr;
  void* queries = nullptr;  // [num_tokens, num_heads, head_dim], of the cache's dtype
  void* keys = nullptr;     // [pages, num_kv_heads, page_size, head_dim]
  void* values = nullptr;
  void* out = nullptr;               // as the queries: of FA2 float32, of FA3 the cache's dtype
  int32_t* query_offsets = nullptr;  // as in Prompts
  int32_t* page_offsets = nullptr;
  int32_t* pages = nullptr;              // [page_offsets[num_sequences]]
  int32_t* last_page_lengths = nullptr;  // [num_sequences]: tokens in each one's last page
  int32_t num_sequences = 0;
  int64_t num_tokens = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t page_size = 0;
  int32_t window = 0;
  float scale = 1.0f;
};
using LaunchPrompts = void (*)(const PromptsLaunch& launch, cudaStream_t stream);

// Whether this program was built for Hopper.
bool has_fa3();
// The kernels that were compiled; nullptr: none of this shape.
LaunchPrompts fa2_kernel(DType cache, int32_t head_dim);
LaunchPrompts fa3_kernel(DType cache, int32_t head_dim);

// --- rows.cu

// Tokens that a batch has scattered, [tokens[i]] of rows of `size` floats `stride` apart, one behind the other as F16
// or BF16.
void gather_rounded(const float* from, int64_t stride, const int32_t* tokens, int64_t num_tokens, int64_t size,
                    DType to, void* out, cudaStream_t stream);
// The way back: rows of F32, F16 or BF16 to rows of floats.
void scatter_floats(const void* from, DType dtype, const int32_t* tokens, int64_t num_tokens, int64_t size, float* out,
                    cudaStream_t stream);

}  // namespace quire::ops::cuda
