#include "ops/cuda/prompt_attention.h"

#ifdef QUIRE_HAS_FLASHINFER
#include "ops/cuda/flashinfer/flashinfer_attention.h"
#endif

namespace quire::ops::cuda {

Result<std::unique_ptr<PromptAttention>> make_prompt_attention(AttentionBackend asked,
                                                               [[maybe_unused]] const AttentionCard& card,
                                                               [[maybe_unused]] Allocator& memory,
                                                               [[maybe_unused]] cudaStream_t stream) {
  const bool by_name = asked == AttentionBackend::kFlashInfer || asked == AttentionBackend::kFa3;
  if (asked == AttentionBackend::kNative) return std::unique_ptr<PromptAttention>();
  QUIRE_CHECK(!(by_name && card.batch_invariant));
#ifdef QUIRE_HAS_FLASHINFER
  return make_flashinfer_attention(asked, card, memory, stream);
#else
  if (!by_name) return std::unique_ptr<PromptAttention>();
  return unavailable(
      "attention_backend \"{}\": this quire was built without FlashInfer's headers. Build it with cmake "
      "-DQUIRE_FLASHINFER=ON, or choose native",
      name(asked));
#endif
}

}  // namespace quire::ops::cuda
