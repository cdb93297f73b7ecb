#include "ops/cuda/flashinfer/latent.cuh"

namespace quire::ops::cuda {

void launch_latent_bf16(const LatentLaunch& launch, cudaStream_t stream) {
  launch_latent<nv_bfloat16>(launch, stream);
}

}  // namespace quire::ops::cuda
