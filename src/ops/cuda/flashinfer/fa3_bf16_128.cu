#include "ops/cuda/flashinfer/fa3.cuh"

namespace quire::ops::cuda {

void launch_fa3_bf16_128(const AttentionLaunch& launch, cudaStream_t stream) {
  launch_fa3<cutlass::bfloat16_t, 128>(launch, stream);
}

}  // namespace quire::ops::cuda
