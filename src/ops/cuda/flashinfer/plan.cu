// Which block of a launch computes what: FlashInfer's planning, on the host.
#include "ops/cuda/flashinfer/fast_division.h"
// The rest of FlashInfer.
#include <flashinfer/attention/scheduler.cuh>

#include "ops/cuda/flashinfer/edge.h"
#include "ops/cuda/flashinfer/kernels.h"

namespace quire::ops::cuda {
namespace {

constexpr size_t kAlignment = 16;
constexpr int64_t kSplitAsItLikes = -1;
// FA3: above so many pieces of work a head it makes a plan of one head for all, of other kernels.
constexpr int64_t kMostPiecesOfHead = 4096;

uint32_t num_tokens(const Prompts& prompts) {
  return static_cast<uint32_t>(prompts.query_offsets[prompts.num_sequences]);
}

int32_t* changeable(const int32_t* numbers) {
  return const_cast<int32_t*>(numbers);  // FlashInfer only reads them
}

int32_t window_left(const Prompts& prompts) {
  return prompts.window - 1;  // -1: none
}

// Queries of a block of FA3.
int64_t fa3_tile(int32_t head_dim) {
  return head_dim == 64 ? 192 : 128;
}

int64_t fa3_pieces_of_head(const Prompts& prompts) {
  int64_t pieces = 0;
  for (int32_t s = 0; s < prompts.num_sequences; ++s)
    pieces += ceil_div(prompts.query_offsets[s + 1] - prompts.query_offsets[s], fa3_tile(prompts.head_dim));
  return pieces;
}

}  // namespace

PlanBytes fa2_plan_bytes(const Prompts& prompts) {
  PlanBytes bytes;
  at_edge("FlashInfer's plan", [&] {
    return flashinfer::PrefillPlanWorkspaceSize<int32_t>(
        bytes.workspace, bytes.integers, changeable(prompts.query_offsets), changeable(prompts.page_offsets),
        num_tokens(prompts), static_cast<uint32_t>(prompts.num_sequences), static_cast<uint32_t>(prompts.num_heads),
        static_cast<uint32_t>(prompts.num_kv_heads), static_cast<uint32_t>(prompts.head_dim),
        static_cast<uint32_t>(prompts.head_dim), static_cast<uint32_t>(prompts.page_size), /*enable_cuda_graph=*/false,
        sizeof(float), window_left(prompts), kSplitAsItLikes, /*disable_split_kv=*/false, /*num_colocated_ctas=*/0,
        /*uniform_q_len=*/-1, /*stream=*/nullptr);
  });
  return bytes;
}

PlanNumbers plan_fa2(const Prompts& prompts, const PlanBytes& bytes, void* integers, void* pinned,
                     cudaStream_t stream) {
  flashinfer::PrefillPlanInfo plan;
  at_edge("FlashInfer's plan", [&] {
    // Of the workspace offsets alone are asked for: any address that is aligned will do.
    return flashinfer::PrefillPlan<int32_t>(
        reinterpret_cast<void*>(kAlignment), bytes.workspace, integers, pinned, bytes.integers, plan,
        changeable(prompts.query_offsets), changeable(prompts.page_offsets), num_tokens(prompts),
        static_cast<uint32_t>(prompts.num_sequences), static_cast<uint32_t>(prompts.num_heads),
        static_cast<uint32_t>(prompts.num_kv_heads), static_cast<uint32_t>(prompts.head_dim),
        static_cast<uint32_t>(prompts.head_dim), static_cast<uint32_t>(prompts.page_size), /*enable_cuda_graph=*/false,
        sizeof(float), window_left(prompts), kSplitAsItLikes, /*disable_split_kv=*/false, /*num_colocated_ctas=*/0,
        /*uniform_q_len=*/-1, stream);
  });
  QUIRE_CHECK(plan.cta_tile_q == fa2_tile(prompts.head_dim));
  return plan.ToVector();
}

bool has_fa3_schedule(const Prompts& prompts) {
  return ceil_div(num_tokens(prompts), fa3_tile(prompts.head_dim)) + int64_t{prompts.num_sequences} - 1 <=
         kMostPiecesOfHead;
}

PlanBytes fa3_plan_bytes(const Prompts& prompts) {
  int device = 0;
  int processors = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  // It does not tell: seven arrays of all pieces of work and one of the processors, each at an address of 16.
  const auto pieces = static_cast<size_t>(fa3_pieces_of_head(prompts) * prompts.num_heads);
  return {.integers = 7 * (pieces * sizeof(int32_t) + kAlignment) +
                      (static_cast<size_t>(processors) + 1) * sizeof(int32_t) + kAlignment,
          .workspace = 0};
}

PlanNumbers plan_fa3(const Prompts& prompts, const PlanBytes& bytes, void* integers, void* pinned,
                     cudaStream_t stream) {
  flashinfer::PrefillPlanSM90Info plan;
  at_edge("FlashInfer's plan", [&] {
    return flashinfer::PrefillSM90Plan<int32_t>(
        /*float_buffer=*/nullptr, 0, integers, pinned, bytes.integers, plan, changeable(prompts.query_offsets),
        changeable(prompts.page_offsets), changeable(prompts.context_lengths), num_tokens(prompts),
        static_cast<uint32_t>(prompts.num_sequences), static_cast<uint32_t>(prompts.num_heads),
        static_cast<uint32_t>(prompts.num_kv_heads), static_cast<uint32_t>(prompts.head_dim),
        static_cast<uint32_t>(prompts.head_dim), static_cast<uint32_t>(prompts.page_size), /*causal=*/true,
        /*enable_cuda_graph=*/false, /*sizeof_dtype_o=*/2, stream);
  });
  QUIRE_CHECK(!plan.same_schedule_for_all_heads);
  return plan.ToVector();
}

}  // namespace quire::ops::cuda
