// How the tokens of one answer are chosen. Field names, defaults and ranges are vLLM's
// SamplingParams.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "types/ids.h"

namespace quire {

struct SamplingParams {
  float temperature = 1.0f;         // [0, 2]; under 1e-5: greedy
  float top_p = 1.0f;               // (0, 1]
  int32_t top_k = 0;                // 0 or -1: off
  float min_p = 0.0f;               // [0, 1]
  float presence_penalty = 0.0f;    // [-2, 2]
  float frequency_penalty = 0.0f;   // [-2, 2]
  float repetition_penalty = 1.0f;  // > 0
  std::optional<uint64_t> seed;

  std::optional<int32_t> max_tokens = 16;  // nullopt: what the context leaves
  int32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;  // matched on text, by the output processor
  std::vector<TokenId> stop_token_ids;
  bool include_stop_str_in_output = false;
  std::vector<std::pair<TokenId, float>> logit_bias;  // clamped to [-100, 100]

  std::optional<int32_t> logprobs;         // how many alternatives beside the chosen token; 0: the chosen one only
  std::optional<int32_t> prompt_logprobs;  // the same for every prompt token but the first

  bool skip_special_tokens = true;
  bool detokenize = true;

  bool greedy() const { return temperature < 1e-5f; }
};

// The bounds that do not come from the parameters themselves.
struct SamplingLimits {
  int64_t vocab_size = 0;
  int32_t max_logprobs = 20;
};

// Checks ranges (NaN and infinity are out of every range) and ids against the vocabulary.
// Errors: invalid_argument with param() naming the field.
Status validate(const SamplingParams& params, const SamplingLimits& limits);

}  // namespace quire
