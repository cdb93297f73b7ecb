// What the worker knows of each sequence, and the flat batch it makes of a plan.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "nn/batch.h"
#include "runner/step_numbers.h"
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
  // A row gave no token. Steps planned ahead of that go on with a made-up one; nobody will look at what they give.
  Status fault;
};

// A row of the batch whose logits somebody wants.
struct LogitRow {
  int32_t row = 0;             // of the flat batch
  int32_t sequence = 0;        // index into the plan's `scheduled`
  TokenId target = kNoToken;   // the prompt token that this row predicts; kNoToken: sample
  int32_t num_candidates = 0;  // over 0: instead of sampling, the likeliest tokens
};

class InputBatch {
 public:
  // num_groups: of layers with block tables of their own. The backend must outlive the batch.
  InputBatch(ops::Backend& backend, int32_t num_groups) : numbers_(backend), groups_(static_cast<size_t>(num_groups)) {}
  size_t num_groups() const { return groups_.size(); }

  // Builds from the plan. REQUIRES: states holds every scheduled sequence and its known tokens reach the end of its
  // run.
  void build(const StepPlan& plan, std::unordered_map<SequenceId, SequenceState>& states, int32_t block_size);

  // Views of this object, valid until the next build; where the device reads them.
  nn::Batch view(std::span<const nn::CacheLayer> layers);
  const std::vector<LogitRow>& logit_rows() const { return logit_rows_; }

 private:
  struct Group {
    std::vector<int64_t> slots;         // [num_tokens]
    std::vector<BlockId> block_tables;  // [num_sequences, block_table_stride_]
  };

  void add_run(const ScheduledSequence& scheduled, size_t index, int32_t block_size);

  StepNumbers numbers_;
  std::vector<TokenId> token_ids_;
  std::vector<int32_t> positions_;
  std::vector<Group> groups_;
  std::vector<nn::CacheGroup> group_views_;
  std::vector<int32_t> query_offsets_;
  std::vector<int32_t> context_lengths_;
  std::vector<int32_t> prompt_lengths_;
  size_t block_table_stride_ = 0;
  std::vector<LogitRow> logit_rows_;
};

}  // namespace quire::runner
