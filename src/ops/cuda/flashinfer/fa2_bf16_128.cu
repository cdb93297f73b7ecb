#include "ops/cuda/flashinfer/fa2.cuh"

namespace quire::ops::cuda {

void launch_fa2_bf16_128(const AttentionLaunch& launch, cudaStream_t stream) {
  launch_fa2<nv_bfloat16, 128>(launch, stream);
}

void launch_fa2_bf16_128_capped(const AttentionLaunch& launch, cudaStream_t stream) {
  launch_fa2<nv_bfloat16, 128, CappedVariant>(launch, stream);
}

}  // namespace quire::ops::cuda
