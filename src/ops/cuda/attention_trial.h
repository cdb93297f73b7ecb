// A trial of the kernels that `auto` takes for prompts (prompt_attention.h): do they give what quire's own give, on the
// card at hand? It belongs in a process of its own, which an illegal address ends and which may be ended where a kernel
// does not end.
#pragma once

#include <cuda_runtime.h>

#include "base/status.h"
#include "ops/cuda/prompt_attention.h"

namespace quire::ops::cuda {

// Errors: internal, which shape of attention differs and by how much; resource_exhausted. What CUDA refuses ends the
// process. Batches that `attention` has no kernel for prove nothing.
Status compare_with_own(PromptAttention& attention, Allocator& memory, cudaStream_t stream);

}  // namespace quire::ops::cuda
