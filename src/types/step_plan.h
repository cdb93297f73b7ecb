// One step of the engine as plain data: what sched/ asks of runner/ (StepPlan) and what comes back
// (StepResult). Neither side sees the other; both can live in different processes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "types/ids.h"
#include "types/sampling_params.h"

namespace quire {

// Told to the runner once, in the first plan that schedules the sequence. The runner keeps the
// tokens of a sequence (prompt and sampled) until the plan that retires it, so that later plans
// name positions only.
struct NewSequence {
  SequenceId id = 0;
  std::vector<TokenId> prompt;
  std::shared_ptr<const SamplingParams> params;  // immutable
  uint64_t seed = 0;                             // the request's own, or one drawn by the engine
  std::vector<TokenId> stop_token_ids;           // the model's end ids too, unless ignore_eos: banned until min_tokens
};

// A run of tokens [num_computed_tokens, num_computed_tokens + num_new_tokens) of a sequence to
// compute in this step. Prefill and decode are the same thing.
struct ScheduledSequence {
  SequenceId id = 0;
  int32_t num_computed_tokens = 0;   // keys and values already in the cache
  int32_t num_new_tokens = 0;        // >= 1
  std::vector<BlockId> block_table;  // covers all tokens up to the end of this run
  bool samples = false;  // the run reaches the end of the known tokens: a token is sampled from its last row
};

struct StepPlan {
  uint64_t step = 0;
  std::vector<SequenceId> retired;  // forget these first
  std::vector<NewSequence> added;   // then learn these
  std::vector<ScheduledSequence> scheduled;
  int32_t num_tokens = 0;  // sum of num_new_tokens
};

// One token with its log-probability (natural log, of the model's own distribution before
// penalties, temperature and filters, as vLLM's default "raw_logprobs") and rank (1 = most likely).
struct TokenLogprob {
  TokenId id = kNoToken;
  float logprob = 0.0f;
  int32_t rank = 0;
};

// The chosen (or given) token first, then the most likely ones in falling order.
struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
};

struct SequenceResult {
  SequenceId id = 0;
  std::vector<TokenId> tokens;                    // sampled in this step; empty while the prompt is being computed
  std::vector<PositionLogprobs> logprobs;         // beside tokens, if asked for
  std::vector<PositionLogprobs> prompt_logprobs;  // of the prompt tokens that this step's rows predict, if asked for
  Status error;                                   // a fault of this sequence alone (not finite logits, ...)
};

struct StepResult {
  uint64_t step = 0;
  std::vector<SequenceResult> sequences;  // one per ScheduledSequence, in the plan's order
};

}  // namespace quire
