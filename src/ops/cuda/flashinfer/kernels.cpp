#include "ops/cuda/flashinfer/kernels.h"

namespace quire::ops::cuda {

// fa2_*.cu, fa3_*.cu
void launch_fa2_f16_64(const AttentionLaunch& launch, cudaStream_t stream);
void launch_fa2_f16_128(const AttentionLaunch& launch, cudaStream_t stream);
void launch_fa2_f16_256(const AttentionLaunch& launch, cudaStream_t stream);
void launch_fa2_bf16_64(const AttentionLaunch& launch, cudaStream_t stream);
void launch_fa2_bf16_128(const AttentionLaunch& launch, cudaStream_t stream);
void launch_fa2_bf16_256(const AttentionLaunch& launch, cudaStream_t stream);
void launch_fa2_f8_64(const AttentionLaunch& launch, cudaStream_t stream);
void launch_fa2_f8_128(const AttentionLaunch& launch, cudaStream_t stream);
// Gemma 2's heads.
void launch_fa2_f16_128_capped(const AttentionLaunch& launch, cudaStream_t stream);
void launch_fa2_f16_256_capped(const AttentionLaunch& launch, cudaStream_t stream);
void launch_fa2_bf16_128_capped(const AttentionLaunch& launch, cudaStream_t stream);
void launch_fa2_bf16_256_capped(const AttentionLaunch& launch, cudaStream_t stream);
void launch_fa3_f16_128(const AttentionLaunch& launch, cudaStream_t stream);
void launch_fa3_bf16_128(const AttentionLaunch& launch, cudaStream_t stream);
// latent_*.cu, fa3_latent_*.cu
void launch_latent_f16(const LatentLaunch& launch, cudaStream_t stream);
void launch_latent_bf16(const LatentLaunch& launch, cudaStream_t stream);
void launch_fa3_latent_f16(const LatentLaunch& launch, cudaStream_t stream);
void launch_fa3_latent_bf16(const LatentLaunch& launch, cudaStream_t stream);

namespace {

struct Kernel {
  DType cache;
  int32_t head_dim;
  LaunchAttention launch;
  LaunchAttention capped = nullptr;
};

constexpr Kernel kFa2[] = {
    {DType::kF16, 64, launch_fa2_f16_64},
    {DType::kF16, 128, launch_fa2_f16_128, launch_fa2_f16_128_capped},
    {DType::kF16, 256, launch_fa2_f16_256, launch_fa2_f16_256_capped},
    {DType::kBF16, 64, launch_fa2_bf16_64},
    {DType::kBF16, 128, launch_fa2_bf16_128, launch_fa2_bf16_128_capped},
    {DType::kBF16, 256, launch_fa2_bf16_256, launch_fa2_bf16_256_capped},
    {DType::kF8E4M3, 64, launch_fa2_f8_64},
    {DType::kF8E4M3, 128, launch_fa2_f8_128},
};

}  // namespace

LaunchAttention fa2_kernel(DType cache, int32_t head_dim, bool has_soft_cap) {
  for (const Kernel& kernel : kFa2) {
    if (kernel.cache == cache && kernel.head_dim == head_dim) return has_soft_cap ? kernel.capped : kernel.launch;
  }
  return nullptr;
}

LaunchLatent latent_kernel(DType cache, [[maybe_unused]] bool is_hopper) {
#ifdef QUIRE_HAS_FA3
  if (is_hopper && cache == DType::kF16) return launch_fa3_latent_f16;
  if (is_hopper && cache == DType::kBF16) return launch_fa3_latent_bf16;
#endif
  if (cache == DType::kF16) return launch_latent_f16;
  return cache == DType::kBF16 ? launch_latent_bf16 : nullptr;
}

bool has_fa3() {
#ifdef QUIRE_HAS_FA3
  return true;
#else
  return false;
#endif
}

LaunchAttention fa3_kernel([[maybe_unused]] DType cache, [[maybe_unused]] int32_t head_dim) {
#ifdef QUIRE_HAS_FA3
  if (head_dim == 128 && cache == DType::kF16) return launch_fa3_f16_128;
  if (head_dim == 128 && cache == DType::kBF16) return launch_fa3_bf16_128;
#endif
  return nullptr;
}

}  // namespace quire::ops::cuda
