// FlashInfer's FA2, its tiles for prompts and for short runs: fa2_*.cu are this with a dtype and a head size.
#pragma once

#include "ops/cuda/flashinfer/fast_division.h"
#include "ops/cuda/flashinfer/kernels.h"
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
// Positions of a tile, in sixteens of each warp that shares in them: of prompts all do each. Only heads of 256, where
// shared memory is small, come down to one.
#undef DISPATCH_NUM_MMA_KV
#define DISPATCH_NUM_MMA_KV(most, NUM_MMA_KV, ...)             \
  if constexpr (CTA_TILE_Q == quire::ops::cuda::kShortTile) {  \
    if (most >= 2) {                                           \
      constexpr size_t NUM_MMA_KV = 2;                         \
      __VA_ARGS__                                              \
    } else {                                                   \
      constexpr size_t NUM_MMA_KV = 1;                         \
      __VA_ARGS__                                              \
    }                                                          \
  } else if (most >= 4) {                                      \
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

namespace quire::ops::cuda {

// With a window, whose mask costs where it is wanted only: one kernel for both.
using PlainVariant = flashinfer::DefaultAttention</*use_custom_mask=*/false, /*use_sliding_window=*/true,
                                                  /*use_logits_soft_cap=*/false, /*use_alibi=*/false>;
// And with a soft cap. FlashInfer's own takes tanh of 11 bits, which may be 2% of a weight; this is right to the last
// few of a float.
struct CappedVariant : flashinfer::DefaultAttention<false, true, /*use_logits_soft_cap=*/true, false> {
  using DefaultAttention::DefaultAttention;
  REGISTER_LOGITS_TRANSFORM(params, logits, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {
    const float power = flashinfer::math::ptx_exp2(2 * flashinfer::math::log2e * soft_cap_pre_tanh_scale * logits);
    return 1 - 2 * flashinfer::math::ptx_rcp(1 + power);
  })
};

// Params with what both kinds of launches have.
template <typename Params>
Params fa2_params(const AttentionLaunch& launch, int head_dim) {
  using T = typename Params::DTypeKV;
  const int64_t strides[3] = {launch.page_stride, int64_t{launch.page_size} * head_dim, head_dim};
  const flashinfer::paged_kv_t<T, int32_t> cache(
      static_cast<uint32_t>(launch.num_kv_heads), static_cast<uint32_t>(launch.page_size),
      static_cast<uint32_t>(head_dim), static_cast<uint32_t>(launch.num_sequences), flashinfer::QKVLayout::kHND,
      static_cast<T*>(launch.keys), static_cast<T*>(launch.values), strides, launch.pages, launch.page_offsets,
      launch.last_page_lengths);
  return Params(static_cast<typename Params::DTypeQ*>(launch.queries), cache, /*maybe_custom_mask=*/nullptr,
                launch.query_offsets, /*maybe_mask_indptr=*/nullptr, /*maybe_q_rope_offset=*/nullptr,
                static_cast<float*>(launch.out), /*lse=*/nullptr, /*maybe_alibi_slopes=*/nullptr,
                static_cast<uint32_t>(launch.num_heads), launch.num_heads * head_dim, head_dim, launch.window - 1,
                launch.soft_cap, launch.scale, /*rope_scale=*/1, /*rope_theta=*/1);
}

template <int kTile, int kHeadDim, typename Variant, typename Params>
cudaError_t launch_fa2_tile(const Params& params, float* sums, float* states, cudaStream_t stream) {
  return flashinfer::BatchPrefillWithPagedKVCacheDispatched<
      /*SAME_KV_STRIDES=*/true, kTile, kHeadDim, kHeadDim, flashinfer::PosEncodingMode::kNone,
      /*USE_FP16_QK_REDUCTION=*/false, flashinfer::MaskMode::kCausal, Variant>(params, sums, states,
                                                                               /*enable_pdl=*/false, stream);
}

// T: of the cache.
template <typename T, int kHeadDim, typename Variant = PlainVariant, typename Query = T>
void launch_fa2(const AttentionLaunch& launch, cudaStream_t stream) {
  using Params = flashinfer::BatchPrefillPagedParams<Query, T, float, int32_t>;
  at_edge("FlashInfer's FA2", [&] {
    auto params = fa2_params<Params>(launch, kHeadDim);
    if (const ShortPlan* plan = launch.short_plan) {
      params.request_indices = plan->item_runs;
      params.qo_tile_indices = plan->item_tiles;
      params.kv_tile_indices = plan->item_pieces;
      params.o_indptr = plan->part_offsets;
      params.kv_chunk_size_ptr = plan->piece_length;
      params.block_valid_mask = plan->item_valid;
      params.merge_indptr = plan->merge_offsets;
      params.padded_batch_size = static_cast<uint32_t>(launch.num_items);
      params.max_total_num_rows = static_cast<uint32_t>(launch.num_tokens);
      auto* sums = static_cast<float*>(launch.workspace);
      float* states = sums + int64_t{launch.num_parts} * launch.num_heads * kHeadDim;
      return launch_fa2_tile<kShortTile, kHeadDim, Variant>(params, sums, states, stream);
    }
    flashinfer::PrefillPlanInfo plan;
    plan.FromVector(*launch.plan);
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
    return launch_fa2_tile<fa2_tile(kHeadDim), kHeadDim, Variant>(params, sums, states, stream);
  });
}

}  // namespace quire::ops::cuda
