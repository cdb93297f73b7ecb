// One kernel of FlashInfer's for prompts, FA3: fa3_*.cu are this with a dtype and a head size.
#pragma once

#include "ops/cuda/flashinfer/fast_division.h"
// The rest of FlashInfer.
#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <limits>

#include "ops/cuda/flashinfer/edge.h"
#include "ops/cuda/flashinfer/kernels.h"

namespace quire::ops::cuda {

template <typename T, int kHeadDim>
void launch_fa3(const AttentionLaunch& launch, cudaStream_t stream) {
  using Params = flashinfer::BatchPrefillPagedParams<T, T, T, int32_t>;
  at_edge("FlashInfer's FA3", [&] {
    flashinfer::PrefillPlanSM90Info plan;
    plan.FromVector(*launch.plan);
    const auto integers = [&](int64_t offset) {
      return flashinfer::GetPtrFromBaseOffset<int32_t>(launch.plan_integers, offset);
    };
    const int64_t token = int64_t{launch.num_heads} * kHeadDim;
    const int64_t head = int64_t{launch.page_size} * kHeadDim;
    Params params = {};
    params.q_ptr = static_cast<T*>(launch.queries);
    params.k_ptr = static_cast<T*>(launch.keys);
    params.v_ptr = static_cast<T*>(launch.values);
    params.o_ptr = static_cast<T*>(launch.out);
    params.qo_tile_indices = integers(plan.qo_tile_indices_offset);
    params.qo_indptr = integers(plan.qo_indptr_offset);
    params.kv_indptr = integers(plan.kv_indptr_offset);
    params.kv_indices = launch.pages;
    params.qo_lens = integers(plan.qo_len_offset);
    params.kv_lens = integers(plan.kv_len_offset);
    params.head_indices = integers(plan.head_indices_offset);
    params.work_indptr = integers(plan.work_indptr_offset);
    params.batch_indices = integers(plan.batch_indices_offset);
    params.additional_params.sm_scale = launch.scale;
    params.q_stride_n = params.o_stride_n = token;
    params.q_stride_h = params.o_stride_h = kHeadDim;
    params.k_stride_n = params.v_stride_n = kHeadDim;
    params.k_stride_h = params.v_stride_h = head;
    params.k_page_stride = params.v_page_stride = launch.page_stride;
    params.nnz_qo = launch.num_tokens;
    params.num_qo_heads = launch.num_heads;
    params.num_kv_heads = launch.num_kv_heads;
    params.group_size = launch.num_heads / launch.num_kv_heads;
    params.page_size = launch.page_size;
    // One kernel for both: a window that reaches behind every context masks nothing.
    params.window_left = launch.window > 0 ? launch.window - 1 : std::numeric_limits<int32_t>::max() / 2;
    params.causal = true;
    return flashinfer::BatchPrefillWithPagedKVCacheDispatched<
        kHeadDim, kHeadDim, flashinfer::MaskMode::kCausal, /*LEFT_SLIDING_WINDOW=*/true,
        /*SAME_SCHEDULE_FOR_ALL_HEADS=*/false, flashinfer::DefaultAttention</*use_logits_soft_cap=*/false>>(
        params, /*enable_pdl=*/false, stream);
  });
}

}  // namespace quire::ops::cuda
