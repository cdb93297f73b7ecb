// A row of numbers on its way to 16 bits.
#pragma once

#include "ops/cuda/device.cuh"

namespace quire::ops::cuda {

// Of a block of kThreads: 1, or the inverse of the power of two that brings `most`, the bits of the largest magnitude
// that its threads have seen, from 2^15 on, below that; the power is left at *factor. What is infinite or NaN
// stays so.
template <int kThreads>
__device__ float divisor_in_range(unsigned most, float* factor) {
  __shared__ unsigned largest[kThreads / kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) most = max(most, __shfl_xor_sync(kAllLanes, most, offset));
  if (threadIdx.x % kWarp == 0) largest[threadIdx.x / kWarp] = most;
  __syncthreads();
  for (const unsigned each : largest) most = max(most, each);
  constexpr unsigned kRoom = 127 + 14;
  const unsigned exponent = most >> 23;
  const unsigned above = exponent > kRoom && exponent < 255 ? exponent - kRoom : 0;
  if (threadIdx.x == 0) *factor = __uint_as_float((127 + above) << 23);
  return __uint_as_float((127 - above) << 23);
}

// Calls store(quad, values) for `num_quads` fours of a row of x that begins at `first`, zeros behind its end, each by
// one of a block's kThreads threads; brought into F16's range where `factor` is not nullptr. Of rows up to kKept *
// kThreads fours no number is read twice.
template <int kThreads, int kKept, typename Store>
__device__ void for_quads_in_range(const Rows& x, int64_t x_stride, int64_t first, int64_t columns, int num_quads,
                                   float* factor, const Store& store) {
  const bool whole = are_quads(x.data, x.dtype, x_stride);
  const auto read = [&](int quad) {
    const int64_t column = int64_t{4} * quad;
    if (whole && column + 4 <= columns) return load_quad(x, first + column);
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = column + i < columns ? load_number(x, first + column + i) : 0.0f;
    return make_float4(v[0], v[1], v[2], v[3]);
  };
  unsigned most = 0;
  const auto look_at = [&](const float4& v) {
    const auto bits = [](float number) { return __float_as_uint(number) & 0x7fffffffu; };
    most = max(max(max(most, bits(v.x)), max(bits(v.y), bits(v.z))), bits(v.w));
  };
  const int thread = static_cast<int>(threadIdx.x);
  float4 kept[kKept];
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int quad = i * kThreads + thread;
    kept[i] = quad < num_quads ? read(quad) : make_float4(0, 0, 0, 0);
    look_at(kept[i]);
  }
  for (int quad = kKept * kThreads + thread; quad < num_quads; quad += kThreads) look_at(read(quad));
  const float divided = factor == nullptr ? 1.0f : divisor_in_range<kThreads>(most, factor);
  const auto scaled = [&](const float4& v) {
    return make_float4(v.x * divided, v.y * divided, v.z * divided, v.w * divided);
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int quad = i * kThreads + thread;
    if (quad < num_quads) store(quad, scaled(kept[i]));
  }
  for (int quad = kKept * kThreads + thread; quad < num_quads; quad += kThreads) store(quad, scaled(read(quad)));
}

}  // namespace quire::ops::cuda
