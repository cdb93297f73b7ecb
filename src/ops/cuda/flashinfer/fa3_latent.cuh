// FlashInfer's latent attention, FA3's way: fa3_latent_*.cu are this with a dtype.
#pragma once

#include "ops/cuda/flashinfer/latent.cuh"
// The rest of FlashInfer.
#include <flashinfer/attention/mla_hopper.cuh>

namespace quire::ops::cuda {

template <typename T>
void launch_fa3_latent(const LatentLaunch& launch, cudaStream_t stream) {
  at_edge("FlashInfer's latent attention", [&] {
    return flashinfer::mla::BatchMLAPageAttentionHopper<flashinfer::MaskMode::kCausal, kLatentDim,
                                                        kLatentKeyDim - kLatentDim>(
        latent_params<T>(launch), static_cast<uint32_t>(launch.size.blocks_of_tile),
        static_cast<uint32_t>(launch.size.num_teams), stream);
  });
}

}  // namespace quire::ops::cuda
