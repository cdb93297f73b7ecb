// Attention by FlashInfer's kernels: which of them takes what, and their plans.
#pragma once

#include <memory>

#include "base/status.h"
#include "ops/cuda/prompt_attention.h"

namespace quire::ops::cuda {

// nullptr: there is none for this card. Errors: as make_prompt_attention().
Result<std::unique_ptr<PromptAttention>> make_flashinfer_attention(AttentionBackend asked, const AttentionCard& card,
                                                                   Allocator& memory, cudaStream_t stream);

}  // namespace quire::ops::cuda
