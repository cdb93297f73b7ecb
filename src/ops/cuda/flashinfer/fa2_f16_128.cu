#include "ops/cuda/flashinfer/fa2.cuh"

namespace quire::ops::cuda {

void launch_fa2_f16_128(const AttentionLaunch& launch, cudaStream_t stream) {
  launch_fa2<half, 128>(launch, stream);
}

void launch_fa2_f16_128_capped(const AttentionLaunch& launch, cudaStream_t stream) {
  launch_fa2<half, 128, CappedVariant>(launch, stream);
}

}  // namespace quire::ops::cuda
