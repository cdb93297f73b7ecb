// Which kernels compute attention, and those of prompts that are not quire's own (--attention-backend).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>

#include "base/status.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/paged_attention.h"
#include "tensor/tensor.h"

namespace quire::ops::cuda {

// Attention of the sequences of a batch that have more than 8 queries, in its turn on a stream.
class PromptAttention {
 public:
  virtual ~PromptAttention() = default;
  // False: there is no kernel for this, and nothing was done. `scratch` is at an address of 256.
  virtual bool attend(const PagedAttentionArgs& args, void* scratch, size_t scratch_bytes) = 0;
};

// What a choice depends on beside what was asked for.
struct AttentionCard {
  int major = 0;  // compute capability
  int minor = 0;
  bool batch_invariant = false;
};

// The kernels for what was asked for; nullptr: quire's own. Errors: those that were asked for by name are not in this
// program (unavailable) or cannot be on this card or with these options (invalid_argument).
Result<std::unique_ptr<PromptAttention>> make_prompt_attention(AttentionBackend asked, const AttentionCard& card,
                                                               Allocator& memory, cudaStream_t stream);

}  // namespace quire::ops::cuda
