// What plans that are made on the card share: one block makes one.
#pragma once

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/device.cuh"
#include "ops/cuda/flashinfer/kernels.h"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {

inline constexpr int kPlanThreads = 256;

// The sum of the block's threads up to and with this one; `sums`: [kPlanThreads / kWarp]. Every thread is given the sum
// of all.
__device__ inline int32_t sum_up_to(int32_t value, int32_t* sums, int32_t& all) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  int32_t sum = sum_up_to_lane(value, lane);
  __syncthreads();  // what was there before has been read
  if (lane == kWarp - 1) sums[warp] = sum;
  __syncthreads();
  all = 0;
  for (int w = 0; w < kPlanThreads / kWarp; ++w) {
    if (w < warp) sum += sums[w];
    all += sums[w];
  }
  return sum;
}

__device__ inline int32_t ceil_quotient(int32_t a, int32_t b) {
  return (a + b - 1) / b;
}

// The first of `ends`, which rise to above `item`, that is above it.
__device__ inline int32_t find_end(const int32_t* ends, int32_t count, int32_t item) {
  int32_t first = 0;
  for (int32_t last = count - 1; first < last;) {
    const int32_t middle = (first + last) / 2;
    if (ends[middle] > item) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

// The shortest length of pieces, a multiple of kPiece, of which num_items(length) is at most `most`; the longest
// context is one piece at most. Every thread of the block calls it and is given the same.
template <typename NumItems>
__device__ int32_t shortest_piece(int32_t longest_context, int32_t most, const NumItems& num_items) {
  int32_t low = 1;
  int32_t high = ceil_quotient(longest_context, kPiece);
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (num_items(middle * kPiece) > most) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low * kPiece;
}

inline int num_processors() {
  int device = 0;
  int processors = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return processors;
}

// Arrays one behind the other, each at an address of 16.
class Layout {
 public:
  explicit Layout(void* memory) : memory_(static_cast<uint8_t*>(memory)) {}
  template <typename T>
  void take(T*& place, int32_t count) {
    place = reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kAlignment = 16;
  uint8_t* const memory_;
  size_t bytes_ = 0;
};

}  // namespace quire::ops::cuda
