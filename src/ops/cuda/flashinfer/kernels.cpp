#include "ops/cuda/flashinfer/kernels.h"

namespace quire::ops::cuda {

// fa2_*.cu, fa3_*.cu
void launch_fa2_f16_64(const PromptsLaunch& launch, cudaStream_t stream);
void launch_fa2_f16_128(const PromptsLaunch& launch, cudaStream_t stream);
void launch_fa2_f16_256(const PromptsLaunch& launch, cudaStream_t stream);
void launch_fa2_bf16_64(const PromptsLaunch& launch, cudaStream_t stream);
void launch_fa2_bf16_128(const PromptsLaunch& launch, cudaStream_t stream);
void launch_fa2_bf16_256(const PromptsLaunch& launch, cudaStream_t stream);
void launch_fa3_f16_128(const PromptsLaunch& launch, cudaStream_t stream);
void launch_fa3_bf16_128(const PromptsLaunch& launch, cudaStream_t stream);

namespace {

struct Kernel {
  DType cache;
  int32_t head_dim;
  LaunchPrompts launch;
};

constexpr Kernel kFa2[] = {
    {DType::kF16, 64, launch_fa2_f16_64},   {DType::kBF16, 64, launch_fa2_bf16_64},
    {DType::kF16, 128, launch_fa2_f16_128}, {DType::kBF16, 128, launch_fa2_bf16_128},
    {DType::kF16, 256, launch_fa2_f16_256}, {DType::kBF16, 256, launch_fa2_bf16_256},
};

}  // namespace

LaunchPrompts fa2_kernel(DType cache, int32_t head_dim) {
  for (const Kernel& kernel : kFa2) {
    if (kernel.cache == cache && kernel.head_dim == head_dim) return kernel.launch;
  }
  return nullptr;
}

bool has_fa3() {
#ifdef QUIRE_HAS_FA3
  return true;
#else
  return false;
#endif
}

LaunchPrompts fa3_kernel([[maybe_unused]] DType cache, [[maybe_unused]] int32_t head_dim) {
#ifdef QUIRE_HAS_FA3
  if (head_dim == 128 && cache == DType::kF16) return launch_fa3_f16_128;
  if (head_dim == 128 && cache == DType::kBF16) return launch_fa3_bf16_128;
#endif
  return nullptr;
}

}  // namespace quire::ops::cuda
