// What the engine tells the consumer of one request.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "types/ids.h"
#include "types/step_plan.h"

namespace quire {

enum class FinishReason { kNone, kStop, kLength, kRepetition, kAbort, kError };

constexpr std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kRepetition:
      return "repetition";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "";
}

struct TokenEvent {
  std::vector<TokenId> tokens;                    // new since the last event
  std::vector<PositionLogprobs> logprobs;         // beside tokens, if asked for
  std::vector<PositionLogprobs> prompt_logprobs;  // all at once with the first token, if asked for
  std::vector<float> pooled;                      // SequenceResult::pooled, with the only event of such a request
  FinishReason finish = FinishReason::kNone;      // the last event has one
  std::optional<TokenId> stop_token;  // kStop by this id (it is the last of `tokens`); end-of-sequence ids included
  bool stopped_by_eos = false;        // stop_token is one of the model's own end ids
  std::optional<int32_t> num_cached_tokens;  // with the first event: of the prompt, found in the prefix cache
  std::optional<double> cumulative_logprob;  // of a beam search: the whole answer's, with its only event
  // Of the request's own prediction, where it has one: tokens that were accepted, and guesses that were computed and
  // were not the answer's.
  int32_t num_predicted_tokens = 0;
  int32_t num_mispredicted_tokens = 0;
  uint64_t adapter_revision = 0;  // of the request's adapter; 0: it has none
  Status error;                   // kError
  // With the last event: the request's log-probabilities count against the engine's bound (max_request_bytes) as long
  // as somebody holds this. Whoever keeps them keeps it beside them.
  std::shared_ptr<const void> memory_held;
};

}  // namespace quire
