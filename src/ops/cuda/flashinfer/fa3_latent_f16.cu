#include "ops/cuda/flashinfer/fa3_latent.cuh"

namespace quire::ops::cuda {

void launch_fa3_latent_f16(const LatentLaunch& launch, cudaStream_t stream) {
  launch_fa3_latent<half>(launch, stream);
}

}  // namespace quire::ops::cuda
