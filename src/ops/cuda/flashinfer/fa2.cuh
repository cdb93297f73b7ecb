// One kernel of FlashInfer's for prompts, FA2: fa2_*.cu are this with a dtype and a head size.
#pragma once

#include "ops/cuda/flashinfer/fast_division.h"
// FlashInfer's macros, before what it makes of them: it would compile kernels of shapes that no launch here has.
#include <flashinfer/utils.cuh>

#undef DISPATCH_HEAD_DIM
#define DISPATCH_HEAD_DIM(head_dim, HEAD_DIM, ...)           \
  if (head_dim == 64) {                                      \
    constexpr size_t HEAD_DIM = 64;                          \
    __VA_ARGS__                                              \
  } else if (head_dim == 128) {                              \
    constexpr size_t HEAD_DIM = 128;                         \
    __VA_ARGS__                                              \
  } else if (head_dim == 256) {                              \
    constexpr size_t HEAD_DIM = 256;                         \
    __VA_ARGS__                                              \
  } else {                                                   \
    FLASHINFER_ERROR("no kernel of this size was compiled"); \
  }
// Positions of a tile, in sixteens. Only heads of 256, where shared memory is small, come down to one.
#undef DISPATCH_NUM_MMA_KV
#define DISPATCH_NUM_MMA_KV(most, NUM_MMA_KV, ...)             \
  if (most >= 4) {                                             \
    constexpr size_t NUM_MMA_KV = 4;                           \
    __VA_ARGS__                                                \
  } else if (most >= 2) {                                      \
    constexpr size_t NUM_MMA_KV = 2;                           \
    __VA_ARGS__                                                \
  } else if constexpr (HEAD_DIM_VO > 128) {                    \
    constexpr size_t NUM_MMA_KV = 1;                           \
    __VA_ARGS__                                                \
  } else {                                                     \
    FLASHINFER_ERROR("the card has too little shared memory"); \
  }

#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/scheduler.cuh>

#include "ops/cuda/flashinfer/edge.h"
#include "ops/cuda/flashinfer/kernels.h"

namespace quire::ops::cuda {

template <typename T, int kHeadDim>
void launch_fa2(const PromptsLaunch& launch, cudaStream_t stream) {
  using Params = flashinfer::BatchPrefillPagedParams<T, T, float, int32_t>;
  // The mask of a window costs where it is wanted only: one kernel for both.
  using Variant = flashinfer::DefaultAttention</*use_custom_mask=*/false, /*use_sliding_window=*/true,
                                               /*use_logits_soft_cap=*/false, /*use_alibi=*/false>;
  at_edge("FlashInfer's FA2", [&] {
    flashinfer::PrefillPlanInfo plan;
    plan.FromVector(*launch.plan);
    const flashinfer::paged_kv_t<T, int32_t> cache(
        static_cast<uint32_t>(launch.num_kv_heads), static_cast<uint32_t>(launch.page_size), kHeadDim,
        static_cast<uint32_t>(launch.num_sequences), flashinfer::QKVLayout::kHND, static_cast<T*>(launch.keys),
        static_cast<T*>(launch.values), launch.pages, launch.page_offsets, launch.last_page_lengths);
    Params params(static_cast<T*>(launch.queries), cache, /*maybe_custom_mask=*/nullptr, launch.query_offsets,
                  /*maybe_mask_indptr=*/nullptr, /*maybe_q_rope_offset=*/nullptr, static_cast<float*>(launch.out),
                  /*lse=*/nullptr, /*maybe_alibi_slopes=*/nullptr, static_cast<uint32_t>(launch.num_heads),
                  launch.num_heads * kHeadDim, kHeadDim, launch.window - 1, /*logits_soft_cap=*/0, launch.scale,
                  /*rope_scale=*/1, /*rope_theta=*/1);
    const auto integers = [&](int64_t offset) {
      return flashinfer::GetPtrFromBaseOffset<int32_t>(launch.plan_integers, offset);
    };
    params.request_indices = integers(plan.request_indices_offset);
    params.qo_tile_indices = integers(plan.qo_tile_indices_offset);
    params.kv_tile_indices = integers(plan.kv_tile_indices_offset);
    params.o_indptr = integers(plan.o_indptr_offset);
    params.kv_chunk_size_ptr = integers(plan.kv_chunk_size_ptr_offset);
    params.padded_batch_size = static_cast<uint32_t>(plan.padded_batch_size);
    params.max_total_num_rows = static_cast<uint32_t>(plan.total_num_rows);
    float* sums = nullptr;
    float* states = nullptr;
    if (plan.split_kv) {
      params.merge_indptr = integers(plan.merge_indptr_offset);
      sums = flashinfer::GetPtrFromBaseOffset<float>(launch.workspace, plan.v_offset);
      states = flashinfer::GetPtrFromBaseOffset<float>(launch.workspace, plan.s_offset);
    }
    return flashinfer::BatchPrefillWithPagedKVCacheDispatched<
        /*SAME_KV_STRIDES=*/true, fa2_tile(kHeadDim), kHeadDim, kHeadDim, flashinfer::PosEncodingMode::kNone,
        /*USE_FP16_QK_REDUCTION=*/false, flashinfer::MaskMode::kCausal, Variant>(params, sums, states,
                                                                                 /*enable_pdl=*/false, stream);
  });
}

}  // namespace quire::ops::cuda
