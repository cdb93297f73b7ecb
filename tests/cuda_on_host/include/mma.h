// Tensor cores as nvcuda::wmma offers them: lane 0 of a warp has its fragments whole and multiplies them by plain
// loops, the others have nothing. Elements of a fragment are not offered, for which lane has which is the card's own.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };

namespace precision {
struct tf32;
}

// To 10 bits of fraction, the nearest, away from zero in the middle.
inline float __float_to_tf32(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return x;
  return std::bit_cast<float>((bits + 0x1000u) & ~0x1fffu);
}

template <typename Use, int M, int N, int K, typename T, typename Layout = void>
struct fragment {
  static constexpr int kRows = std::is_same_v<Use, matrix_b> ? K : M;
  static constexpr int kColumns = std::is_same_v<Use, matrix_a> ? K : N;
  static_assert(M == 16 && N == 16 && K == (std::is_same_v<T, precision::tf32> ? 8 : K), "a shape that cards have");
  float emulated[kRows][kColumns];
};

template <typename Use, int M, int N, int K, typename T, typename Layout>
void fill_fragment(fragment<Use, M, N, K, T, Layout>& out, float value) {
  if (quire::cuda_on_host::lane() != 0) return;
  for (auto& row : out.emulated) {
    for (float& each : row) each = value;
  }
}

// Cards want addresses of 32 bytes and strides of 16.
template <typename T>
bool is_aligned(const T* at, unsigned stride) {
  return reinterpret_cast<uintptr_t>(at) % 32 == 0 && stride * sizeof(T) % 16 == 0;
}

template <typename Use, int M, int N, int K, typename T, typename Layout, typename Stored>
void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& out, const Stored* from, unsigned stride) {
  if (!is_aligned(from, stride)) std::abort();
  if (quire::cuda_on_host::lane() != 0) return;
  constexpr bool kByRows = std::is_same_v<Layout, row_major>;
  for (int i = 0; i < out.kRows; ++i) {
    for (int j = 0; j < out.kColumns; ++j)
      out.emulated[i][j] = static_cast<float>(kByRows ? from[i * stride + j] : from[j * stride + i]);
  }
}

template <int M, int N, int K>
void load_matrix_sync(fragment<accumulator, M, N, K, float>& out, const float* from, unsigned stride, layout_t layout) {
  if (!is_aligned(from, stride)) std::abort();
  if (quire::cuda_on_host::lane() != 0) return;
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < N; ++j)
      out.emulated[i][j] =
          layout == mem_row_major ? from[i * static_cast<int>(stride) + j] : from[j * static_cast<int>(stride) + i];
  }
}

template <int M, int N, int K, typename T, typename LayoutA, typename LayoutB>
void mma_sync(fragment<accumulator, M, N, K, float>& out, const fragment<matrix_a, M, N, K, T, LayoutA>& a,
              const fragment<matrix_b, M, N, K, T, LayoutB>& b, const fragment<accumulator, M, N, K, float>& c) {
  if (quire::cuda_on_host::lane() != 0) return;
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < N; ++j) {
      float sum = c.emulated[i][j];
      for (int k = 0; k < K; ++k) sum += a.emulated[i][k] * b.emulated[k][j];
      out.emulated[i][j] = sum;
    }
  }
}

template <int M, int N, int K>
void store_matrix_sync(float* to, const fragment<accumulator, M, N, K, float>& from, unsigned stride, layout_t layout) {
  if (!is_aligned(to, stride)) std::abort();
  if (quire::cuda_on_host::lane() != 0) return;
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < N; ++j) to[layout == mem_row_major ? i * stride + j : j * stride + i] = from.emulated[i][j];
  }
}

}  // namespace nvcuda::wmma
