// Log-probabilities of a row of logits: natural logarithms of the softmax.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "types/ids.h"
#include "types/step_plan.h"

namespace quire::sampling {

// The log-probability and rank of `token` and of the `top` (-1: all, else >= 0) most
// likely ones: for the tokens of a prompt as for sampled ones. The rank is 1 + the number of
// strictly larger logits; equal logits go by rising id. The softmax is shifted by the largest logit
// and summed in double. A token of logit -inf has log-probability -inf. logits: [vocab_size].
// Errors: internal when a logit is NaN or +inf, or all are -inf. REQUIRES: token is in the
// vocabulary.
Result<PositionLogprobs> position_logprobs(std::span<const float> logits, TokenId token, int32_t top);

}  // namespace quire::sampling
