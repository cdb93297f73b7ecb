// What kernels share.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace quire::ops::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// The block's memory of the size that its launch named.
template <typename T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char quire_dynamic_shared[];
  return reinterpret_cast<T*>(quire_dynamic_shared);
}

__device__ inline float warp_sum(float value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

__device__ inline float warp_max(float value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  return value;
}

}  // namespace quire::ops::cuda
