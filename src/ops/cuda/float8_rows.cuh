// Rows that become 8-bit floats with a scale each, which makes a row's largest magnitude 448.
#pragma once

#include "ops/cuda/device.cuh"
#include "ops/cuda/kv_values.cuh"

namespace quire::ops::cuda {

// The bits of the larger of two magnitudes, of which `most` is one. NaN is larger than all.
__device__ inline uint32_t larger_magnitude(uint32_t most, float x) {
  const uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
  return bits > most ? bits : most;
}
__device__ inline uint32_t larger_magnitude(uint32_t most, const float4& x) {
  return larger_magnitude(larger_magnitude(larger_magnitude(larger_magnitude(most, x.x), x.y), x.z), x.w);
}

// The largest of a warp's, by their bits.
__device__ inline uint32_t warp_largest_magnitude(float x) {
  uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const uint32_t other = __shfl_xor_sync(kAllLanes, bits, offset);
    bits = other > bits ? other : bits;
  }
  return bits;
}

// The largest of all threads' of a block of at most so many warps.
template <int kBlockWarps>
__device__ uint32_t block_largest_magnitude(uint32_t most) {
  __shared__ uint32_t of_warps[kBlockWarps];
  const int num_warps = static_cast<int>(blockDim.x) / kWarp;
  most = warp_largest_magnitude(__uint_as_float(most));
  __syncthreads();  // those of before have been read
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = most;
  __syncthreads();
  if constexpr (kBlockWarps > 8) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    return warp_largest_magnitude(lane < num_warps ? __uint_as_float(of_warps[lane]) : 0.0f);
  } else {
#pragma unroll
    for (int warp = 0; warp < kBlockWarps; ++warp) {
      if (warp < num_warps) most = of_warps[warp] > most ? of_warps[warp] : most;
    }
    return most;
  }
}

// The scale of numbers of which this is the largest magnitude, by its bits.
__device__ inline float f8_scale(uint32_t most) {
  return __fdiv_rn(__uint_as_float(most), 448.0f);
}
// What activations are multiplied by instead of a division each, which would take longer than to read them. Of the
// least scales not infinite, by which a zero would be NaN.
__device__ inline float f8_inverse(float scale) {
  return scale > 0 ? fminf(1.0f / scale, 3.4e38f) : 1.0f;
}
__device__ inline uint32_t f8_codes(const float4& x, float inverse) {
  return float8_codes(x.x * inverse, x.y * inverse) | float8_codes(x.z * inverse, x.w * inverse) << 16;
}

// Where the scales of coded rows lie (ops/rows.h).
__device__ inline float* scales_behind(uint8_t* codes, int64_t num_rows, int64_t columns) {
  return reinterpret_cast<float*>(codes + num_rows * columns);
}

}  // namespace quire::ops::cuda
