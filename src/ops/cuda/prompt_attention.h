// Which kernels compute attention, and those that are not quire's own (--attention-backend).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>

#include "base/status.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/paged_attention.h"
#include "tensor/tensor.h"

namespace quire::ops::cuda {

// What of a batch was computed.
enum class Attended {
  kNothing,  // there is no kernel for this
  kPrompts,  // the sequences of more than 8 queries
  kAll,
};

inline constexpr int kNotRecorded = 0;

// Attention of a batch, or of its prompts, in its turn on a stream.
class PromptAttention {
 public:
  virtual ~PromptAttention() = default;
  // `recording` tells apart what is recorded, by numbers that rise from one recording to the next; kNotRecorded: this
  // is not. Of a batch that is recorded, sequences have a query each, and the host's context lengths are the longest
  // that it will be replayed with. `scratch` is at an address of 256.
  virtual Attended attend(const PagedAttentionArgs& args, int recording, void* scratch, size_t scratch_bytes) = 0;
};

// What a choice depends on beside what was asked for.
struct AttentionCard {
  int major = 0;  // compute capability
  int minor = 0;
  bool batch_invariant = false;
};

// The kernels for what was asked for; nullptr: quire's own. kAuto: FlashInfer's for prompts where this program and the
// card have them, of FA3's kind before FA2's; quire's own for all else. Errors: those that were asked for by name are
// not in this program (unavailable) or cannot be on this card (invalid_argument). REQUIRES: none is asked for by name
// with batch_invariant: its sums depend on the rest of the batch.
Result<std::unique_ptr<PromptAttention>> make_prompt_attention(AttentionBackend asked, const AttentionCard& card,
                                                               Allocator& memory, cudaStream_t stream);

}  // namespace quire::ops::cuda
