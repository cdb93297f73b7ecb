// What an answer may become, known before it is begun: what the engine prices (engine/request_cost.h), and beside that
// the texts whose size a request sets, which are log-probabilities and what it repeats of its prompts. The words
// themselves are few against the keys and values that each of them takes, and those are bounded.
#pragma once

#include <cstdint>
#include <span>

#include "engine/request_cost.h"
#include "server/answer.h"
#include "types/sampling_params.h"

namespace quire::server {

struct AnswerSize {
  int64_t held = 0;  // bytes of memory at most, about: a prompt's part once
  int64_t text = 0;  // bytes that the client is sent: a prompt's part with each of its choices
};

AnswerSize answer_size(const SamplingParams& params, const AnswerContext& context,
                       std::span<const PreparedPrompt> prompts, const engine::CostFacts& facts);

}  // namespace quire::server
