// How groups' rows of x are cut into tiles, none of which has rows of two groups.
#pragma once

#include "ops/cuda/device.cuh"
#include "ops/cuda/kernels.h"

namespace quire::ops::cuda {

// A block's rows: of which group, from which of its rows on, how many.
struct RowTile {
  int32_t group;  // below 0: there is none
  int32_t first;  // of the group's rows
  int32_t count;
  int32_t before;  // rows of the groups before it
};

// Tile `slot` of all groups' tiles of kRows rows. In all threads.
template <int kRows>
__device__ RowTile find_row_tile(const GroupedRowsWork& work, int32_t slot) {
  if (work.offsets == nullptr) {
    const auto each = static_cast<int32_t>(work.num_rows / work.num_groups);
    const int32_t tiles = (each + kRows - 1) / kRows;
    const int32_t group = slot / tiles;
    const int32_t first = slot % tiles * kRows;
    if (group >= work.num_groups) return {-1, 0, 0, 0};
    return {group, first, min(kRows, each - first), group * each};
  }
  __shared__ RowTile found;
  if (threadIdx.x < kWarp) {
    const auto lane = static_cast<int>(threadIdx.x);
    if (lane == 0) found = {-1, 0, 0, 0};
    __syncwarp();
    int32_t before = 0;
    for (int32_t base = 0; base < work.num_groups; base += kWarp) {
      const int32_t group = base + lane;
      const int32_t begin = group < work.num_groups ? work.offsets[group] : 0;
      const int32_t rows = group < work.num_groups ? work.offsets[group + 1] - begin : 0;
      const int32_t tiles = (rows + kRows - 1) / kRows;
      const int32_t sum = sum_up_to_lane(tiles, lane);
      const int32_t first = slot - (before + sum - tiles);
      if (first >= 0 && first < tiles) found = {group, first * kRows, min(kRows, rows - first * kRows), begin};
      before += __shfl_sync(kAllLanes, sum, kWarp - 1);
      if (before > slot) break;
    }
  }
  __syncthreads();
  return found;
}

}  // namespace quire::ops::cuda
