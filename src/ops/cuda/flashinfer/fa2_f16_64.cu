#include "ops/cuda/flashinfer/fa2.cuh"

namespace quire::ops::cuda {

void launch_fa2_f16_64(const AttentionLaunch& launch, cudaStream_t stream) {
  launch_fa2<half, 64>(launch, stream);
}

}  // namespace quire::ops::cuda
