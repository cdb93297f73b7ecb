// Division by a number that the host knows, in the place of FlashInfer's fastdiv.cuh: that one wants a newer CCCL than
// the CUDA toolkit brings. To be included before any header of FlashInfer.
#pragma once

#ifdef FLASHINFER_FASTDIV_CUH_
#error "include ops/cuda/flashinfer/fast_division.h before FlashInfer's headers"
#endif
#define FLASHINFER_FASTDIV_CUH_

#include <cuda_runtime.h>

#include <cstdint>

namespace flashinfer {

// A product and a shift instead of a division (Granlund and Montgomery, 1994). Right for every dividend below 2^31.
struct uint_fastdiv {
  __host__ __device__ uint_fastdiv() {}
  __host__ uint_fastdiv(uint32_t number) : divisor(number) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    if (divisor > 0) factor = static_cast<uint32_t>((((uint64_t{1} << shift) - divisor) << 32) / divisor + 1);
  }

  __host__ __device__ __forceinline__ operator unsigned int() const { return divisor; }
  __host__ __device__ __forceinline__ void divmod(uint32_t dividend, uint32_t& quotient, uint32_t& remainder) const {
    const auto high = static_cast<uint32_t>((uint64_t{dividend} * factor) >> 32);
    quotient = (high + dividend) >> shift;
    remainder = dividend - quotient * divisor;
  }

  uint32_t divisor = 1;
  uint32_t factor = 1;
  uint32_t shift = 0;
};

__host__ __device__ __forceinline__ uint32_t operator/(uint32_t dividend, const uint_fastdiv& divisor) {
  uint32_t quotient;
  uint32_t remainder;
  divisor.divmod(dividend, quotient, remainder);
  return quotient;
}

__host__ __device__ __forceinline__ uint32_t operator%(uint32_t dividend, const uint_fastdiv& divisor) {
  uint32_t quotient;
  uint32_t remainder;
  divisor.divmod(dividend, quotient, remainder);
  return remainder;
}

}  // namespace flashinfer
