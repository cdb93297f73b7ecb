// The groups that FlashInfer's kernels meet in, for the emulated device.
#pragma once

#include <cuda_runtime.h>

namespace cooperative_groups {

struct thread_block {
  void sync() const { __syncthreads(); }
};
inline thread_block this_thread_block() {
  return {};
}

// A grid that meets is run twice (cudaLaunchCooperativeKernel() of flashinfer_on_host.h).
struct grid_group {
  void sync() const { __syncthreads(); }
};
inline grid_group this_grid() {
  return {};
}

}  // namespace cooperative_groups
