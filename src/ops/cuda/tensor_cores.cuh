// Tensor cores by name: matrices of shared memory in registers, and their products. As PTX's manual lays them out over
// the lanes of a warp, which all come here together; on the emulated device its lanes do the same.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstring>
#include <type_traits>

#ifndef __CUDACC__
#include <tensor_cores_on_host.h>
#endif

namespace quire::ops::cuda {

// Two numbers of 16 bits in a register: the lower half is the first.
template <typename T>
__device__ inline unsigned pair_of(float first, float second) {
  unsigned bits;
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(first, second);
    memcpy(&bits, &pair, sizeof(bits));
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    memcpy(&bits, &pair, sizeof(bits));
  }
  return bits;
}

// sums += left * right, of matrices [16, 16] and [16, 8] of T (__half or __nv_bfloat16), summed in float32. Lane l has
//   left    rows l / 4 and l / 4 + 8, in turns, of columns 2 (l % 4) and the next; then the same 8 columns further
//   right   column l / 4, rows 2 (l % 4) and the next, and the same 8 rows further
//   sums    row l / 4, columns 2 (l % 4) and the next, then row l / 4 + 8
template <typename T>
__device__ inline void multiply_16_8_16(float (&sums)[4], const unsigned (&left)[4], unsigned right_first,
                                        unsigned right_second) {
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right_first), "r"(right_second));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right_first), "r"(right_second));
  }
#else
  cuda_on_host::multiply_16_8_16<T>(sums, left, right_first, right_second);
#endif
}

// A matrix of 8 x 8 numbers of 16 bits, of which lane l has row l / 4, columns 2 (l % 4) and the next: its transpose.
__device__ inline unsigned transposed(unsigned pair) {
#ifdef __CUDACC__
  unsigned result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
#else
  return cuda_on_host::transposed(pair);
#endif
}

// Four matrices of 8 x 8 numbers of 16 bits out of shared memory: lane l names row l % 8 of matrix l / 8, 16 bytes at
// an address of 16, and is given of each matrix the two numbers of row l / 4 from column 2 (l % 4) on. kTransposed: of
// column l / 4 from row 2 (l % 4) on.
template <bool kTransposed>
__device__ inline void load_matrices(unsigned (&registers)[4], const void* row) {
#ifdef __CUDACC__
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(address)
                 : "memory");
  }
#else
  cuda_on_host::load_matrices<kTransposed>(registers, row);
#endif
}

}  // namespace quire::ops::cuda
