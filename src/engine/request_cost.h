// What a request may come to take beside its tokens' keys and values, known before it is admitted. The one place that
// prices: Engine::submit() refuses and makes wait by it, and servers ask it beforehand (Engine::cost_of()).
#pragma once

#include <cstdint>

#include "engine/prepare_params.h"
#include "types/sampling_params.h"

namespace quire::engine {

struct CostFacts {
  int64_t vocab_size = 0;
  int64_t max_model_len = 0;
  int64_t max_num_batched_tokens = 0;
};

struct RequestCost {
  // That the model may compute: the prompt once, and every answer to its bound. A search's beams are answers.
  int64_t tokens = 0;
  // Of logits in a step: one for each answer, and those of the prompt's tokens that are scored.
  int64_t rows = 0;
  LogprobBytes logprobs;
  // Memory of the host until its client has taken everything: lists, copies of the prompt, log-probabilities, beams and
  // the states of constraints. Without what answers' tokens take (about 40 bytes each): each has keys and values in the
  // cache, which are a hundred times that, so the plan of memory bounds them.
  int64_t heap_bytes = 0;
  // What the host does in a step for all rows beside the model's own work, in numbers that it looks at, of about 0.2
  // ns: passes over rows of logits, lists and histories. The scheduler bounds a step by it where several tenants share
  // it.
  int64_t step_work = 0;
};

// Before the parameters' texts are tokens: what DRY's breakers and bad words come to is bounded by validate(), and left
// out. REQUIRES: params are valid.
RequestCost cost_of(const SamplingParams& params, int64_t num_prompt_tokens, const CostFacts& facts);

}  // namespace quire::engine
