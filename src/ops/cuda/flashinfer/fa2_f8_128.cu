#include "ops/cuda/flashinfer/fa2.cuh"

namespace quire::ops::cuda {

void launch_fa2_f8_128(const AttentionLaunch& launch, cudaStream_t stream) {
  launch_fa2<__nv_fp8_e4m3, 128, PlainVariant, half>(launch, stream);
}

}  // namespace quire::ops::cuda
