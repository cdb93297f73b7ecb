// What kernels share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "ops/rows.h"

namespace quire::ops::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// The first thing that a kernel does: kernels are launched while those before them still run (launch.h), and here they
// wait until what those wrote is there; from then on the next may be launched. What a kernel reads before must be
// written by none (weights).
__device__ inline void begin_kernel() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// The block's memory of the size that its launch named, at an alignment that tensor cores' loads want.
template <typename T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(32) unsigned char quire_dynamic_shared[];
  return reinterpret_cast<T*>(quire_dynamic_shared);
}

// Number `index` of rows of any dtype, and its rounding to nearest even.
__device__ inline float load_number(const Rows& rows, int64_t index) {
  if (rows.dtype == DType::kF32) return static_cast<const float*>(rows.data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(rows.data)[index];
  return rows.dtype == DType::kBF16 ? __uint_as_float(static_cast<unsigned>(bits) << 16)
                                    : __half2float(__ushort_as_half(bits));
}
__device__ inline void store_number(const OutRows& rows, int64_t index, float value) {
  if (rows.dtype == DType::kF32) {
    static_cast<float*>(rows.data)[index] = value;
  } else {
    static_cast<uint16_t*>(rows.data)[index] = rows.dtype == DType::kBF16
                                                   ? __bfloat16_as_ushort(__float2bfloat16_rn(value))
                                                   : __half_as_ushort(__float2half_rn(value));
  }
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
