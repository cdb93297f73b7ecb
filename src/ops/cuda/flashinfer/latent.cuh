// FlashInfer's latent attention, FA2's way: latent_*.cu are this with a dtype.
#pragma once

#include "ops/cuda/flashinfer/fast_division.h"
// The rest of FlashInfer.
#include <flashinfer/attention/mla.cuh>

#include "ops/cuda/flashinfer/edge.h"
#include "ops/cuda/flashinfer/kernels.h"

namespace quire::ops::cuda {

// kPositions: of a tile, two of which a block has room for.
template <typename T, int kPositions, typename Params>
cudaError_t launch_latent_tile(Params params, const LatentSize& size, cudaStream_t stream) {
  using Traits =
      flashinfer::mla::KernelTraits</*CAUSAL=*/true, /*NUM_STAGES=*/2, /*QK_SHARD=*/true, kLatentDim,
                                    kLatentKeyDim - kLatentDim, /*CTA_TILE_Q=*/64, kPositions, T, T, T, int32_t>;
  constexpr size_t kShared = sizeof(typename Traits::SharedStorage);
  const auto kernel = flashinfer::mla::BatchMLAPagedAttentionKernel<Traits, Params>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
             "shared memory of attention");
  void* arguments[] = {&params};
  const dim3 grid(static_cast<unsigned>(size.blocks_of_tile), static_cast<unsigned>(size.num_teams));
  return cudaLaunchCooperativeKernel((const void*)kernel, grid, dim3(32, 4, 2), arguments, kShared, stream);
}

template <typename T>
using LatentParams = flashinfer::MLAParams<T, T, T, int32_t>;

template <typename T>
LatentParams<T> latent_params(const LatentLaunch& launch) {
  const LatentPlan& plan = *launch.plan;
  LatentParams<T> params = {};
  params.q_nope = static_cast<T*>(launch.queries);
  params.q_pe = params.q_nope + kLatentDim;
  params.ckv = static_cast<T*>(launch.keys);
  params.kpe = params.ckv + kLatentDim;
  params.partial_o = static_cast<T*>(launch.parts);
  params.partial_lse = static_cast<float*>(launch.states);
  params.final_o = static_cast<T*>(launch.out);
  params.q_indptr = plan.query_offsets;
  params.kv_indptr = plan.page_offsets;
  params.partial_indptr = plan.parts;
  params.merge_packed_offset_start = plan.merge_begins;
  params.merge_packed_offset_end = plan.merge_ends;
  params.merge_partial_packed_offset_start = plan.part_begins;
  params.merge_partial_packed_offset_end = plan.part_ends;
  params.merge_partial_stride = plan.part_strides;
  params.kv_indices = launch.pages;
  params.q_len = plan.num_queries;
  params.kv_len = plan.context_lengths;
  params.q_start = plan.first_rows;
  params.kv_start = plan.begins;
  params.kv_end = plan.ends;
  params.work_indptr = plan.item_offsets;
  params.block_size = flashinfer::uint_fastdiv(static_cast<uint32_t>(launch.page_size));
  params.num_heads = flashinfer::uint_fastdiv(static_cast<uint32_t>(launch.num_heads));
  params.q_nope_stride_n = params.q_pe_stride_n = static_cast<uint32_t>(launch.num_heads * kLatentKeyDim);
  params.q_nope_stride_h = params.q_pe_stride_h = kLatentKeyDim;
  params.ckv_stride_page = params.kpe_stride_page = static_cast<uint32_t>(launch.page_stride);
  params.ckv_stride_n = params.kpe_stride_n = kLatentKeyDim;
  params.o_stride_n = static_cast<uint32_t>(launch.num_heads * kLatentDim);
  params.o_stride_h = kLatentDim;
  params.sm_scale = launch.scale;
  return params;
}

template <typename T>
void launch_latent(const LatentLaunch& launch, cudaStream_t stream) {
  const auto params = latent_params<T>(launch);
  at_edge("FlashInfer's latent attention", [&] {
    return launch.positions == kManyLatentPositions
               ? launch_latent_tile<T, kManyLatentPositions>(params, launch.size, stream)
               : launch_latent_tile<T, kFewLatentPositions>(params, launch.size, stream);
  });
}

}  // namespace quire::ops::cuda
