// How groups' rows of x are cut into tiles, none of which has rows of two groups.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/cuda/device.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {

// A block's rows: of which group, from which of its rows on, how many.
struct RowTile {
  int32_t group;  // below 0: there is none
  int32_t first;  // of the group's rows
  int32_t count;
  int32_t before;  // rows of the groups before it
};

// Rows of all groups that a launch has, of which a tile has no others.
struct RowWindow {
  int32_t first = 0;
  int32_t count = INT32_MAX;

  // Those of a group's rows [begin, end), and how many of its rows come before them.
  __device__ int32_t rows_of(int32_t begin, int32_t end, int32_t& before) const {
    const int64_t past = int64_t{first} + count;
    const int32_t from = begin < first ? first : begin;
    const auto to = static_cast<int32_t>(end < past ? end : past);
    before = from - begin;
    return from < to ? to - from : 0;
  }
};

// How a kernel that multiplies a tile a block is started.
struct TileLaunch {
  int64_t weights;  // rows of the weight that a block has
  int threads;
  int shared_bytes;
};

// kernel(work, rows) over the tiles of the weight's rows and those of kRows of rows.window.
template <int kRows, typename Rows>
void launch_row_tiles(void (*kernel)(GroupedRowsWork, Rows), const GroupedRowsWork& work, const Rows& rows,
                      const TileLaunch& how, cudaStream_t stream) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, how.shared_bytes),
             "shared memory of grouped products");
  // So many at most: each group may have one that is not full.
  const int64_t tiles = rows.window.count / kRows + work.num_groups;
  launch(kernel, dim3(ceil_div(work.shape.rows, how.weights), static_cast<unsigned>(tiles)),
         dim3(static_cast<unsigned>(how.threads)), static_cast<size_t>(how.shared_bytes), stream, work, rows);
}

// body(std::integral_constant<int, rows>{}) for the rows of a tile: those that would be half empty on the mean are
// halved.
template <typename Body>
void with_tile_rows(const GroupedRowsWork& work, const Body& body) {
  if (work.num_rows <= 64 * int64_t{work.num_groups}) {
    body(std::integral_constant<int, 64>{});
  } else {
    body(std::integral_constant<int, 128>{});
  }
}

// Tile `slot` of all groups' tiles of kRows rows. In all threads.
template <int kRows>
__device__ RowTile find_row_tile(const GroupedRowsWork& work, int32_t slot, const RowWindow& window = {}) {
  __shared__ RowTile found;
  if (threadIdx.x < kWarp) {
    const auto lane = static_cast<int>(threadIdx.x);
    const auto each = static_cast<int32_t>(work.offsets == nullptr ? work.num_rows / work.num_groups : 0);
    if (lane == 0) found = {-1, 0, 0, 0};
    __syncwarp();
    int32_t before = 0;
    for (int32_t base = 0; base < work.num_groups; base += kWarp) {
      const int32_t group = base + lane;
      const bool is_group = group < work.num_groups;
      const int32_t begin = !is_group ? 0 : work.offsets == nullptr ? group * each : work.offsets[group];
      const int32_t end = !is_group ? 0 : work.offsets == nullptr ? begin + each : work.offsets[group + 1];
      int32_t skipped = 0;
      const int32_t rows = window.rows_of(begin, end, skipped);
      const int32_t tiles = (rows + kRows - 1) / kRows;
      const int32_t sum = sum_up_to_lane(tiles, lane);
      const int32_t first = slot - (before + sum - tiles);
      if (first >= 0 && first < tiles)
        found = {group, skipped + first * kRows, min(kRows, rows - first * kRows), begin};
      before += __shfl_sync(kAllLanes, sum, kWarp - 1);
      if (before > slot) break;
    }
  }
  __syncthreads();
  return found;
}

}  // namespace quire::ops::cuda
