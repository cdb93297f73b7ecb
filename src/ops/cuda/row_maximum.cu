// The largest of each row of logits.
#include "ops/row_maximum.h"

#include <cmath>

#include "ops/cuda/device.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {
namespace {

constexpr int kThreads = 1024;  // a row's: there are few rows, and each is long
constexpr int kWarps = kThreads / kWarp;
constexpr int32_t kNone = 0x7fffffff;

// The largest number so far, the lowest index that has it, and whether a number that no choice may meet was seen.
struct Best {
  float value;
  int32_t index;
  int32_t spoilt;

  __device__ void meet(float other, int32_t at) {
    if (other > value || (other == value && at < index)) {
      value = other;
      index = at;
    }
  }
  __device__ Best across(int offset) const {
    return {__shfl_xor_sync(kAllLanes, value, offset), __shfl_xor_sync(kAllLanes, index, offset),
            __shfl_xor_sync(kAllLanes, spoilt, offset)};
  }
  __device__ void meet_lanes() {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const Best other = across(offset);
      meet(other.value, other.index);
      spoilt |= other.spoilt;
    }
  }
};

__global__ void row_maximum_kernel(RowMaximumArgs args) {
  __shared__ float values[kWarps];
  __shared__ int32_t indices[kWarps];
  __shared__ int32_t spoilt[kWarps];
  const float* row = args.in + int64_t{blockIdx.x} * args.size;
  Best best{-INFINITY, kNone, 0};
  for (int64_t i = threadIdx.x; i < args.size; i += kThreads) {
    const float value = row[i];
    best.spoilt |= !(value < INFINITY);
    if (value > -INFINITY) best.meet(value, static_cast<int32_t>(i));
  }
  best.meet_lanes();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) {
    values[warp] = best.value;
    indices[warp] = best.index;
    spoilt[warp] = best.spoilt;
  }
  __syncthreads();
  if (warp != 0) return;
  best = {values[lane], indices[lane], spoilt[lane]};
  best.meet_lanes();
  if (lane == 0) args.indices[blockIdx.x] = best.spoilt || best.index == kNone ? -1 : best.index;
}

}  // namespace

void row_maximum(const RowMaximumArgs& args, cudaStream_t stream) {
  static_assert(kWarps == kWarp, "the last reduction has a lane for each warp");
  launch(row_maximum_kernel, dim3(static_cast<unsigned>(args.num_rows)), dim3(kThreads), 0, stream, args);
}

}  // namespace quire::ops::cuda
