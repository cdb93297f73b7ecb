#include "ops/cuda/flashinfer/fa3.cuh"

namespace quire::ops::cuda {

void launch_fa3_f16_128(const AttentionLaunch& launch, cudaStream_t stream) {
  launch_fa3<cutlass::half_t, 128>(launch, stream);
}

}  // namespace quire::ops::cuda
