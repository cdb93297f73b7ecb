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

// Four neighbours at once, from `index` on. REQUIRES: are_quads(): they lie at an address that their size divides.
__host__ __device__ inline bool are_quads(const void* data, DType dtype, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % (dtype == DType::kF32 ? 16 : 8) == 0 && stride % 4 == 0;
}
__device__ inline float4 load_quad(const Rows& rows, int64_t index) {
  if (rows.dtype == DType::kF32) return *reinterpret_cast<const float4*>(static_cast<const float*>(rows.data) + index);
  const uint2 bits = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(rows.data) + index);
  if (rows.dtype == DType::kBF16) {
    return make_float4(__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u),
                       __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u));
  }
  const auto half = [](unsigned two, unsigned shift) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(two >> shift & 0xffffu)));
  };
  return make_float4(half(bits.x, 0), half(bits.x, 16), half(bits.y, 0), half(bits.y, 16));
}
__device__ inline void store_quad(const OutRows& rows, int64_t index, const float4& values) {
  if (rows.dtype == DType::kF32) {
    *reinterpret_cast<float4*>(static_cast<float*>(rows.data) + index) = values;
    return;
  }
  const bool bf16 = rows.dtype == DType::kBF16;
  const auto bits = [bf16](float value) -> unsigned {
    return bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(value)) : __half_as_ushort(__float2half_rn(value));
  };
  *reinterpret_cast<uint2*>(static_cast<uint16_t*>(rows.data) + index) =
      make_uint2(bits(values.x) | bits(values.y) << 16, bits(values.z) | bits(values.w) << 16);
}

// Eight neighbours of 16 bits each. REQUIRES: are_vectors().
__host__ __device__ inline bool are_vectors(const void* data, DType dtype, int64_t stride) {
  return dtype != DType::kF32 && reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
}
struct Eight {
  float of[8];
};
__device__ inline Eight load_eight(const Rows& rows, int64_t index) {
  const uint4 bits = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(rows.data) + index);
  const unsigned pairs[4] = {bits.x, bits.y, bits.z, bits.w};
  Eight eight;
  for (int i = 0; i < 8; ++i) {
    const unsigned pair = pairs[i / 2];
    if (rows.dtype == DType::kBF16) {
      eight.of[i] = __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
    } else {
      eight.of[i] = __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> (i % 2 * 16) & 0xffffu)));
    }
  }
  return eight;
}
// The same of floats too.
__device__ inline Eight load_any_eight(const Rows& rows, int64_t index) {
  if (rows.dtype != DType::kF32) return load_eight(rows, index);
  const auto* quads = reinterpret_cast<const float4*>(static_cast<const float*>(rows.data) + index);
  const float4 low = quads[0];
  const float4 high = quads[1];
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}
__device__ inline void store_eight(const OutRows& rows, int64_t index, const Eight& eight) {
  unsigned pairs[4];
  for (int i = 0; i < 4; ++i) {
    const float first = eight.of[2 * i];
    const float second = eight.of[2 * i + 1];
    if (rows.dtype == DType::kBF16) {
      pairs[i] = __bfloat16_as_ushort(__float2bfloat16_rn(first)) |
                 static_cast<unsigned>(__bfloat16_as_ushort(__float2bfloat16_rn(second))) << 16;
    } else {
      pairs[i] = __half_as_ushort(__float2half_rn(first)) |
                 static_cast<unsigned>(__half_as_ushort(__float2half_rn(second))) << 16;
    }
  }
  *reinterpret_cast<uint4*>(static_cast<uint16_t*>(rows.data) + index) =
      make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

// 2^x by one instruction, to within two units in the last place; 0 below the smallest normal number.
__device__ inline float fast_exp2(float x) {
#ifdef __CUDACC__
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#else
  return exp2f(x);
#endif
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
