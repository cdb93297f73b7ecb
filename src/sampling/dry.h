// DRY, "don't repeat yourself" (Weidmann, text-generation-webui, 2024): a token that would continue a
// run of tokens that has been in the text before is penalised, exponentially in the run's length.
#pragma once

#include <cstddef>
#include <span>

#include "sampling/scratch.h"
#include "types/ids.h"
#include "types/sampling_params.h"

namespace quire::sampling {

class DryPenalty {
 public:
  // Keeps a pointer to params, which must outlive it.
  explicit DryPenalty(const SamplingParams& params) : params_(&params) {}

  static bool is_on(const SamplingParams& params) {
    return params.dry_multiplier > 0.0f && params.dry_penalty_last_n != 0;
  }

  // history: prompt and answer, oldest first; its last dry_penalty_last_n tokens are looked at. For every token that
  // has followed the longest run equal to the text's end of at least dry_allowed_length tokens, not reaching back over
  // the last breaker: logit -= multiplier * base^(length - allowed length). Tokens that are breakers go free. Linear in
  // the tokens looked at.
  void apply(std::span<const TokenId> history, std::span<float> logits, SamplingScratch& scratch) const;

 private:
  // How many tokens the text has behind its last breaker.
  size_t length_since_breaker(std::span<const TokenId> window) const;

  const SamplingParams* params_;
};

}  // namespace quire::sampling
