#include "ops/cuda/flashinfer/fa2.cuh"

namespace quire::ops::cuda {

void launch_fa2_bf16_256(const PromptsLaunch& launch, cudaStream_t stream) {
  launch_fa2<nv_bfloat16, 256>(launch, stream);
}

}  // namespace quire::ops::cuda
