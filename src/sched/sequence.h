// A sequence as the scheduler sees it: what is asked for, how far it is, and which blocks it holds.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kv/block_table.h"
#include "types/ids.h"
#include "types/sampling_params.h"
#include "types/step_plan.h"

namespace quire::sched {

struct SequenceRequest {
  SequenceId id = 0;
  std::vector<TokenId> prompt;                   // not empty
  std::shared_ptr<const SamplingParams> params;  // immutable, validated
  uint64_t seed = 0;                             // of the random choices; handed on to the runner
  std::vector<TokenId> eos_ids;                  // the model's end ids; empty with ignore_eos
};

// kWaiting <-> kRunning (admission, preemption); either -> kEnded (finished, failed or cancelled),
// from where a sequence is dropped as soon as no step in flight uses its blocks.
enum class SequenceState { kWaiting, kRunning, kEnded };

struct Sequence {
  SequenceId id = 0;
  uint64_t arrival = 0;  // rank in the order of arrival
  SequenceState state = SequenceState::kWaiting;
  std::shared_ptr<const SamplingParams> params;
  uint64_t seed = 0;
  std::vector<TokenId> eos_ids;

  std::vector<TokenId> prompt;  // handed over to the runner with the first plan; empty from then on
  bool known_to_runner = false;
  int32_t num_prompt_tokens = 0;
  int32_t num_known_tokens = 0;     // prompt and sampled
  int32_t num_computed_tokens = 0;  // scheduled runs included, committed or not
  int32_t max_total_tokens = 0;     // prompt and answer end here
  int32_t plans_in_flight = 0;      // plans not yet committed that use its blocks
  kv::BlockTable blocks;            // covers num_computed_tokens

  // Prompt logprobs of positions 1 .. num_prompt_logprobs have arrived; those not yet handed on are
  // kept.
  int32_t num_prompt_logprobs = 0;
  std::vector<PositionLogprobs> prompt_logprobs;

  int32_t num_output_tokens() const { return num_known_tokens - num_prompt_tokens; }
  bool scores_only() const { return max_total_tokens == num_prompt_tokens; }
  // Positions whose keys and values are ever needed: the last token sampled is never computed.
  int32_t max_computed_tokens() const { return scores_only() ? num_prompt_tokens : max_total_tokens - 1; }
};

}  // namespace quire::sched
