// What kernels share.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace quire::ops::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// The block's memory of the size that its launch named, at an alignment that tensor cores' loads want.
template <typename T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(32) unsigned char quire_dynamic_shared[];
  return reinterpret_cast<T*>(quire_dynamic_shared);
}

__device__ inline float warp_sum(float value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

// The sum of the values of the lanes up to this one.
template <typename T>
__device__ T sum_up_to_lane(T value, int lane) {
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const T below = __shfl_up_sync(kAllLanes, value, static_cast<unsigned>(offset));
    if (lane >= offset) value += below;
  }
  return value;
}

__device__ inline float warp_max(float value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  return value;
}

}  // namespace quire::ops::cuda
