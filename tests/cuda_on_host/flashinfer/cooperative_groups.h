// The one group that FlashInfer's kernels meet in, for a host that plays the card.
#pragma once

#include <cuda_runtime.h>

namespace cooperative_groups {

struct thread_block {
  void sync() const { __syncthreads(); }
};
inline thread_block this_thread_block() {
  return {};
}

}  // namespace cooperative_groups
