// Stands in for those of FlashInfer's headers that are written in a card's machine language, for the emulated
// device: included before them, with their guards set. Tensor cores' products and the loads that feed them are done by
// the lanes of a warp together, as PTX's manual lays their numbers out over lanes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <tensor_cores_on_host.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>

#define FLASHINFER_MATH_CUH_
#define FLASHINFER_MMA_CUH_

[[noreturn]] inline void quire_not_emulated(const char* what) {
  std::fprintf(stderr, "cuda_on_host: %s is not emulated\n", what);
  std::abort();
}
#define FLASHINFER_RUNTIME_ASSERT(what) quire_not_emulated(what)

// What else its headers name.
namespace cuda {
namespace std = ::std;
}
using std::isfinite;
using std::signbit;
using nv_half = __half;
inline __half2 __float2half2_rn(float x) {
  return __floats2half2_rn(x, x);
}
inline __nv_bfloat162 __float2bfloat162_rn(float x) {
  return __floats2bfloat162_rn(x, x);
}
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) {
  return {x, y};
}
inline __nv_bfloat162 __hmul2(__nv_bfloat162 a, __nv_bfloat162 b) {
  return {float(a.x) * float(b.x), float(a.y) * float(b.y)};
}
inline __half __hmax(__half a, __half b) {
  return fmaxf(a, b);
}
inline __half2 __hmax2(__half2 a, __half2 b) {
  return {__hmax(a.x, b.x), __hmax(a.y, b.y)};
}
inline __half2 operator*(__half2 a, __half2 b) {
  return __hmul2(a, b);
}
inline __half2 operator-(__half2 a, __half2 b) {
  return {float(a.x) - float(b.x), float(a.y) - float(b.y)};
}
template <typename T>
T __ldca(const T* at) {
  return *at;
}
inline cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void*, const cudaLaunchConfig_t*) {
  *size = 1;
  return cudaSuccess;
}
// A grid whose blocks meet, here one block after the other: all of it twice, so that in the second run there is what
// any block wrote before they meet, and is written once more. Right for kernels that write the same numbers both times.
inline cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                                               size_t shared, cudaStream_t stream) {
  const cudaError_t error = cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
  return error != cudaSuccess ? error : cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

namespace flashinfer::math {

constexpr float log2e = 1.44269504088896340736f;
constexpr float loge2 = 0.693147180559945309417f;
constexpr float inf = std::numeric_limits<float>::infinity();

inline float ptx_exp2(float x) {
  return std::exp2(x);
}
inline half2 ptx_exp2(half2 x) {
  return {half(std::exp2(float(x.x))), half(std::exp2(float(x.y)))};
}
inline half ptx_exp2(half x) {
  return half(std::exp2(float(x)));
}
inline float ptx_log2(float x) {
  return std::log2(x);
}
inline float ptx_rcp(float x) {
  return 1.0f / x;
}
inline float rsqrt(float x) {
  return 1.0f / std::sqrt(x);
}
inline float tanh(float x) {
  return std::tanh(x);
}
inline half tanh(half x) {
  return half(std::tanh(float(x)));
}
inline half2 tanh(half2 x) {
  return {tanh(x.x), tanh(x.y)};
}
inline float shfl_xor_sync(float x, int mask) {
  return __shfl_xor_sync(0xffffffffu, x, mask);
}
inline half2 shfl_xor_sync(half2 x, int mask) {
  return __shfl_xor_sync(0xffffffffu, x, mask);
}

}  // namespace flashinfer::math

namespace flashinfer::mma {

enum class MMAMode { kInit, kInplaceUpdate };

using quire::cuda_on_host::load_matrices;
template <typename T>
void ldmatrix_m8n8x4(uint32_t* registers, T* row) {
  load_matrices<false>(registers, row);
}
template <typename T>
void ldmatrix_m8n8x4_trans(uint32_t* registers, T* row) {
  load_matrices<true>(registers, row);
}
// Two of the four: matrices of twice as many numbers of 8 bits.
template <bool kTransposed, typename T>
void load_two_matrices(uint32_t* registers, const T* row, int first, int second) {
  uint32_t all[4];
  load_matrices<kTransposed>(all, row);
  registers[0] = all[first];
  registers[1] = all[second];
}
template <typename T>
void ldmatrix_m8n8x4_left_half(uint32_t* registers, T* row) {
  load_two_matrices<false>(registers, row, 0, 2);
}
template <typename T>
void ldmatrix_m8n8x4_right_half(uint32_t* registers, T* row) {
  load_two_matrices<false>(registers, row, 1, 3);
}
template <typename T>
void ldmatrix_m8n8x4_trans_left_half(uint32_t* registers, T* row) {
  load_two_matrices<true>(registers, row, 0, 1);
}
template <typename T>
void ldmatrix_m8n8x4_trans_right_half(uint32_t* registers, T* row) {
  load_two_matrices<true>(registers, row, 2, 3);
}
template <typename T>
void stmatrix_m8n8x4(uint32_t*, T*) {
  quire_not_emulated("stmatrix");
}

// [16, 16] by [16, 16], sums in floats: of each half of the columns a lane has rows lane / 4 and lane / 4 + 8, two
// numbers from column lane % 4 * 2 on.
template <typename T, MMAMode kMode = MMAMode::kInplaceUpdate>
void mma_sync_m16n16k16_row_col_f16f16f32(float* sums, uint32_t* a, uint32_t* b) {
  using namespace quire::cuda_on_host;
  Matrices& matrices = matrices_of_warp();
  if (kMode == MMAMode::kInit) std::fill_n(sums, 8, 0.0f);
  put_left<T>(matrices, a);
  put_right<T>(matrices, b, 16);
  __syncwarp();
  add_products(matrices, sums, 16);
  __syncwarp();
}
// Sums of the rows of [16, 16]: every four lanes of a row have them.
template <typename T>
void m16k16_rowsum_f16f16f32(float* sums, T* a) {
  using namespace quire::cuda_on_host;
  Matrices& matrices = matrices_of_warp();
  put_left<T>(matrices, reinterpret_cast<const uint32_t*>(a));
  __syncwarp();
  for (int half_of_rows = 0; half_of_rows < 2; ++half_of_rows) {
    for (int k = 0; k < 16; ++k) sums[half_of_rows] += matrices.left[lane() / 4 + half_of_rows * 8][k];
  }
  __syncwarp();
}
template <typename T, MMAMode kMode = MMAMode::kInplaceUpdate>
void mma_sync_m16n16k32_row_col_f8f8f32(float*, uint32_t*, uint32_t*) {
  quire_not_emulated("a product of 8 bits");
}
template <typename T>
void m16k32_rowsum_f8f8f32(float*, T*) {
  quire_not_emulated("a product of 8 bits");
}
template <MMAMode kMode = MMAMode::kInplaceUpdate>
void mma_sync_m16n16k16_row_col_f16f16f16(uint32_t*, uint32_t*, uint32_t*) {
  quire_not_emulated("a product with sums of 16 bits");
}

}  // namespace flashinfer::mma

// As emulate.cmake changed it, before a header that lies beside the other includes that one.
#include <flashinfer/vec_dtypes.cuh>
