#include "ops/cuda/flashinfer/fa2.cuh"

namespace quire::ops::cuda {

void launch_fa2_f16_256(const AttentionLaunch& launch, cudaStream_t stream) {
  launch_fa2<half, 256>(launch, stream);
}

void launch_fa2_f16_256_capped(const AttentionLaunch& launch, cudaStream_t stream) {
  launch_fa2<half, 256, CappedVariant>(launch, stream);
}

}  // namespace quire::ops::cuda
