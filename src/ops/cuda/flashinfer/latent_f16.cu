#include "ops/cuda/flashinfer/latent.cuh"

namespace quire::ops::cuda {

void launch_latent_f16(const LatentLaunch& launch, cudaStream_t stream) {
  launch_latent<half>(launch, stream);
}

}  // namespace quire::ops::cuda
