// What a card's machine language has of tensor cores, for the emulated device: the lanes of a warp load and multiply
// together, each with what PTX's manual gives a lane.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <under_way_on_host.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "ops/cuda/float8.cuh"

namespace quire::cuda_on_host {

// What the lanes of each warp show the others while they meet.
inline const void** shown_by_warp() {
  static thread_local const void* all[32][32];
  return all[running_thread / 32];
}

template <typename T>
float number_of(uint32_t pair, int which) {
  const auto bits = static_cast<unsigned short>(pair >> (16 * which));
  if constexpr (std::is_same_v<T, __half>) return __half2float(__ushort_as_half(bits));
  return __bfloat162float(__ushort_as_bfloat16(bits));
}

// Two matrices that the lanes of a warp put together while they meet.
struct Matrices {
  float left[16][16];   // by rows
  float right[16][16];  // by columns
};
inline Matrices& matrices_of_warp() {
  static thread_local Matrices all[32];
  return all[running_thread / 32];
}

// Of a matrix of 16 x 16 each lane has four registers of two numbers: quarters of 8 x 8, first the upper left one, then
// the lower left, the upper right and the lower right.
template <typename T>
void put_left(Matrices& matrices, const uint32_t* registers) {
  for (int i = 0; i < 8; ++i)
    matrices.left[lane() / 4 + i / 2 % 2 * 8][lane() % 4 * 2 + i % 2 + i / 4 * 8] =
        number_of<T>(registers[i / 2], i % 2);
}
// The same of `columns` (8 or 16) that are stored by columns, first columns 0 to 7: rows 0 to 7, then 8 to 15.
template <typename T>
void put_right(Matrices& matrices, const uint32_t* registers, int columns) {
  for (int i = 0; i < columns / 2; ++i)
    matrices.right[lane() / 4 + i / 4 * 8][lane() % 4 * 2 + i % 2 + i / 2 % 2 * 8] =
        number_of<T>(registers[i / 2], i % 2);
}

// Sums of a lane, four for every 8 columns: of rows lane / 4 and lane / 4 + 8 two neighbours each.
inline void add_products(const Matrices& matrices, float* sums, int columns) {
  for (int i = 0; i < columns / 2; ++i) {
    const float* row = matrices.left[lane() / 4 + i / 2 % 2 * 8];
    const float* column = matrices.right[i / 4 * 8 + lane() % 4 * 2 + i % 2];
    float sum = sums[i];
    for (int k = 0; k < 16; ++k) sum += row[k] * column[k];
    sums[i] = sum;
  }
}

template <typename T>
void multiply_16_8_16(float* sums, const uint32_t* left, uint32_t right_first, uint32_t right_second) {
  Matrices& matrices = matrices_of_warp();
  const uint32_t right[2] = {right_first, right_second};
  put_left<T>(matrices, left);
  put_right<T>(matrices, right, 8);
  __syncwarp();
  add_products(matrices, sums, 8);
  __syncwarp();
}

// A matrix of 8 x 8 numbers of 16 bits, of which lane i has two neighbours of row i / 4: two of column i / 4.
inline uint32_t transposed(uint32_t pair) {
  const void** shown = shown_by_warp();
  shown[lane()] = &pair;
  __syncwarp();
  uint16_t numbers[2];
  for (int i = 0; i < 2; ++i) {
    const void* row = shown[(lane() % 4 * 2 + i) * 4 + lane() / 8];
    std::memcpy(&numbers[i], static_cast<const uint16_t*>(row) + lane() / 4 % 2, sizeof(uint16_t));
  }
  __syncwarp();
  return numbers[0] | static_cast<uint32_t>(numbers[1]) << 16;
}

// Four matrices of 8 x 8 numbers of 16 bits: lane i names row i % 8 of matrix i / 8, and is given of each matrix the
// two numbers at row i / 4 from column i % 4 * 2 on; transposed, of each column.
template <bool kTransposed>
void load_matrices(uint32_t* registers, const void* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) std::abort();
  const void** shown = shown_by_warp();
  shown[lane()] = row;
  __syncwarp();
  for (int m = 0; m < 4; ++m) {
    uint16_t pair[2];
    for (int i = 0; i < 2; ++i) {
      const int from = kTransposed ? lane() % 4 * 2 + i : lane() / 4;
      const int column = kTransposed ? lane() / 4 : lane() % 4 * 2 + i;
      std::memcpy(&pair[i], static_cast<const uint16_t*>(shown[m * 8 + from]) + column, sizeof(uint16_t));
    }
    registers[m] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
  }
  __syncwarp();
}

// --- products of four warps at once, which go on beside the threads

// A thread's part of one.
struct WarpgroupProduct {
  float* sums;
  int columns;
  const uint8_t* left;
  const uint8_t* right;
  bool adds;
};

// 32 codes of a tile's row as numbers: rows are 128 bytes apart, and bits 4 to 6 of an address in shared memory are
// crossed with bits 7 to 9.
inline void read_row(const uint8_t* tile, int row, float* numbers) {
  static const auto table = [] {
    std::vector<float> all;
    for (unsigned code = 0; code < 256; ++code) all.push_back(ops::cuda::lower_half(ops::cuda::halves_of_float8(code)));
    return all;
  }();
  for (int k = 0; k < 32; k += 16) {
    auto address = reinterpret_cast<uintptr_t>(tile + row * 128 + k);
    address ^= (address >> 7 & 7) << 4;
    for (int i = 0; i < 16; ++i) numbers[k + i] = table[reinterpret_cast<const uint8_t*>(address)[i]];
  }
}

inline void compute(const WarpgroupProduct& product) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  float left[2][32];
  for (int i = 0; i < 2; ++i) read_row(product.left, thread / 32 * 16 + thread % 32 / 4 + 8 * i, left[i]);
  for (int n = 0; n < product.columns / 4; ++n) {
    float right[32];
    read_row(product.right, n / 2 * 8 + thread % 4 * 2 + n % 2, right);
    for (int i = 0; i < 2; ++i) {
      float& to = product.sums[n / 2 * 4 + i * 2 + n % 2];
      float sum = product.adds ? to : 0;
      for (int k = 0; k < 32; ++k) sum += left[i][k] * right[k];
      to = sum;
    }
  }
}

// Computed as late as a card may: sums are NaN until they have been waited for.
inline void multiply_64_n_32(float* sums, int columns, const uint8_t* left, const uint8_t* right, bool adds) {
  for (const uint8_t* tile : {left, right}) {
    if (reinterpret_cast<uintptr_t>(tile) % 1024 % 32 != 0 || reinterpret_cast<uintptr_t>(tile) % 1024 >= 128)
      std::abort();
  }
  if (!adds) std::fill(sums, sums + columns / 2, std::numeric_limits<float>::quiet_NaN());
  under_way<WarpgroupProduct>().add({sums, columns, left, right, adds});
}
inline void commit_products() {
  under_way<WarpgroupProduct>().commit();
}
inline void wait_for_products(size_t groups) {
  under_way<WarpgroupProduct>().wait(groups, compute);
}

}  // namespace quire::cuda_on_host
