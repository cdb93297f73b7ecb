// What the worker knows of each sequence, and the flat batch it makes of a plan.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "nn/batch.h"
#include "sampling/sequence_sampler.h"
#include "types/step_plan.h"

namespace quire::runner {

struct SequenceState {
  std::vector<TokenId> tokens;  // prompt, then what was sampled
  int32_t num_prompt_tokens = 0;
  std::shared_ptr<const SamplingParams> params;
  sampling::SequenceSampler sampler;
  // Prompt logprobs are given once, also when a preempted sequence is computed again.
  int32_t next_prompt_logprob = 1;  // position of the next prompt token to be scored
};

// A row of the batch whose logits somebody wants.
struct LogitRow {
  int32_t row = 0;            // of the flat batch
  int32_t sequence = 0;       // index into the plan's `scheduled`
  TokenId target = kNoToken;  // the prompt token that this row predicts; kNoToken: sample
};

class InputBatch {
 public:
  // Builds from the plan. REQUIRES: states holds every scheduled sequence and its known tokens reach the end of its
  // run.
  void build(const StepPlan& plan, std::unordered_map<SequenceId, SequenceState>& states, int32_t block_size);

  // Views of this object, valid until the next build.
  nn::Batch view(std::span<const ops::KvCacheView> layers) const;
  const std::vector<LogitRow>& logit_rows() const { return logit_rows_; }

 private:
  std::vector<TokenId> token_ids_;
  std::vector<int32_t> positions_;
  std::vector<int64_t> slots_;
  std::vector<int32_t> query_offsets_;
  std::vector<int32_t> context_lengths_;
  std::vector<BlockId> block_tables_;
  size_t block_table_stride_ = 0;
  std::vector<LogitRow> logit_rows_;
};

}  // namespace quire::runner
