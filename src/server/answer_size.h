// What an answer may become, known before it is begun: the parts of it whose size a request sets, which are its
// log-probabilities and what it repeats of its prompts. The words themselves are few against the keys and values that
// each of them takes, and those are bounded.
#pragma once

#include <cstdint>
#include <span>

#include "server/answer.h"
#include "types/sampling_params.h"

namespace quire::server {

struct AnswerSize {
  int64_t held = 0;  // bytes of memory at most, about: a prompt's part once
  int64_t text = 0;  // bytes that the client is sent: a prompt's part with each of its choices
};

// vocab_size: what -1 log-probabilities are. max_model_len: tokens of prompt and answer together.
AnswerSize answer_size(const SamplingParams& params, const AnswerContext& context,
                       std::span<const PreparedPrompt> prompts, int64_t vocab_size, int64_t max_model_len);

}  // namespace quire::server
