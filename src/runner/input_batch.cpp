#include "runner/input_batch.h"

#include <algorithm>

namespace quire::runner {
namespace {

// The rows of this run whose prediction is wanted: of prompt tokens not scored yet, and of the token to sample.
void add_logit_rows(const ScheduledSequence& scheduled, SequenceState& state, int32_t first_row, int32_t index,
                    std::vector<LogitRow>& rows) {
  const int32_t begin = scheduled.num_computed_tokens;
  const int32_t end = begin + scheduled.num_new_tokens;
  if (state.params->prompt_logprobs) {
    // The row at position p predicts the token at p + 1.
    const int32_t last = std::min(end, state.num_prompt_tokens - 1);
    for (int32_t target = std::max(begin + 1, state.next_prompt_logprob); target <= last; ++target) {
      rows.push_back({first_row + target - 1 - begin, index, state.tokens[static_cast<size_t>(target)]});
    }
    state.next_prompt_logprob = std::max(state.next_prompt_logprob, last + 1);
  }
  if (scheduled.samples) rows.push_back({first_row + scheduled.num_new_tokens - 1, index, kNoToken});
}

}  // namespace

void InputBatch::build(const StepPlan& plan, std::unordered_map<SequenceId, SequenceState>& states,
                       int32_t block_size) {
  token_ids_.clear();
  positions_.clear();
  slots_.clear();
  query_offsets_.assign(1, 0);
  context_lengths_.clear();
  logit_rows_.clear();
  block_table_stride_ = 0;
  for (const ScheduledSequence& scheduled : plan.scheduled) {
    block_table_stride_ = std::max(block_table_stride_, scheduled.block_table.size());
  }
  block_tables_.assign(plan.scheduled.size() * block_table_stride_, 0);

  for (size_t i = 0; i < plan.scheduled.size(); ++i) {
    const ScheduledSequence& scheduled = plan.scheduled[i];
    SequenceState& state = states.at(scheduled.id);
    const int32_t begin = scheduled.num_computed_tokens;
    const int32_t end = begin + scheduled.num_new_tokens;
    QUIRE_CHECK(static_cast<size_t>(end) <= state.tokens.size());
    QUIRE_CHECK(static_cast<size_t>(end) <= scheduled.block_table.size() * static_cast<size_t>(block_size));
    const int32_t first_row = static_cast<int32_t>(token_ids_.size());
    for (int32_t position = begin; position < end; ++position) {
      const int64_t block = scheduled.block_table[static_cast<size_t>(position / block_size)];
      token_ids_.push_back(state.tokens[static_cast<size_t>(position)]);
      positions_.push_back(position);
      slots_.push_back(block * block_size + position % block_size);
    }
    query_offsets_.push_back(static_cast<int32_t>(token_ids_.size()));
    context_lengths_.push_back(end);
    std::copy(scheduled.block_table.begin(), scheduled.block_table.end(),
              block_tables_.begin() + static_cast<int64_t>(i * block_table_stride_));
    add_logit_rows(scheduled, state, first_row, static_cast<int32_t>(i), logit_rows_);
  }
}

nn::Batch InputBatch::view(std::span<const ops::KvCacheView> layers) const {
  return {.num_tokens = static_cast<int64_t>(token_ids_.size()),
          .num_sequences = static_cast<int32_t>(context_lengths_.size()),
          .token_ids = token_ids_.data(),
          .positions = positions_.data(),
          .slots = slots_.data(),
          .query_offsets = query_offsets_.data(),
          .context_lengths = context_lengths_.data(),
          .block_tables = block_tables_.data(),
          .block_table_stride = static_cast<int64_t>(block_table_stride_),
          .layers = layers};
}

}  // namespace quire::runner
