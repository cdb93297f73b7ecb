// What an answer may become, known before it is begun: what the engine prices (Engine::cost_of()), and beside that the
// texts whose size a request sets, which are log-probabilities and what it repeats of its prompts. The words themselves
// are few against the keys and values that each of them takes, and those are bounded.
#pragma once

#include <cstdint>
#include <span>

#include "engine/engine.h"
#include "server/answer.h"
#include "types/sampling_params.h"

namespace quire::server {

struct AnswerSize {
  int64_t held = 0;  // bytes of memory at most, about: a prompt's part once
  int64_t text = 0;  // bytes that the client is sent: a prompt's part with each of its choices
};

// REQUIRES: params are valid.
AnswerSize answer_size(const engine::Engine& engine, const SamplingParams& params, const AnswerContext& context,
                       std::span<const PreparedPrompt> prompts);

}  // namespace quire::server
