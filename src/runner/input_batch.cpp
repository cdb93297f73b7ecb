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
  if (scheduled.samples) {
    rows.push_back({first_row + scheduled.num_new_tokens - 1, index, kNoToken, scheduled.num_candidates});
  }
}

}  // namespace

void InputBatch::build(const StepPlan& plan, std::unordered_map<SequenceId, SequenceState>& states,
                       int32_t block_size) {
  token_ids_.clear();
  positions_.clear();
  query_offsets_.assign(1, 0);
  context_lengths_.clear();
  prompt_lengths_.clear();
  logit_rows_.clear();
  size_t stride = 0;
  for (const ScheduledSequence& scheduled : plan.scheduled) {
    stride = std::max(stride, scheduled.block_table.size() / groups_.size());
  }
  block_table_stride_ = stride;
  for (Group& group : groups_) {
    group.slots.clear();
    group.block_tables.assign(plan.scheduled.size() * stride, 0);
  }

  for (size_t i = 0; i < plan.scheduled.size(); ++i) {
    const ScheduledSequence& scheduled = plan.scheduled[i];
    SequenceState& state = states.at(scheduled.id);
    const int32_t begin = scheduled.num_computed_tokens;
    const int32_t end = begin + scheduled.num_new_tokens;
    QUIRE_CHECK(static_cast<size_t>(end) <= state.tokens.size());
    const int32_t first_row = static_cast<int32_t>(token_ids_.size());
    for (int32_t position = begin; position < end; ++position) {
      token_ids_.push_back(state.tokens[static_cast<size_t>(position)]);
      positions_.push_back(position);
    }
    add_run(scheduled, i, block_size);
    query_offsets_.push_back(static_cast<int32_t>(token_ids_.size()));
    context_lengths_.push_back(end);
    prompt_lengths_.push_back(state.num_prompt_tokens);
    add_logit_rows(scheduled, state, first_row, static_cast<int32_t>(i), logit_rows_);
  }
}

// The run's slots and its row of the block tables, in every group.
void InputBatch::add_run(const ScheduledSequence& scheduled, size_t index, int32_t block_size) {
  const int32_t begin = scheduled.num_computed_tokens;
  const int32_t end = begin + scheduled.num_new_tokens;
  const size_t num_blocks = scheduled.block_table.size() / groups_.size();
  QUIRE_CHECK(static_cast<size_t>(end) <= num_blocks * static_cast<size_t>(block_size));
  for (size_t g = 0; g < groups_.size(); ++g) {
    const BlockId* table = scheduled.block_table.data() + g * num_blocks;
    for (int32_t position = begin; position < end; ++position) {
      const int64_t block = table[position / block_size];
      QUIRE_DCHECK(block != kNoBlock);
      groups_[g].slots.push_back(block * block_size + position % block_size);
    }
    // Blocks behind the window are never read; a kernel may still form their address.
    std::replace_copy(table, table + num_blocks,
                      groups_[g].block_tables.begin() + static_cast<int64_t>(index * block_table_stride_), kNoBlock,
                      BlockId{0});
  }
}

nn::Batch InputBatch::view(std::span<const nn::CacheLayer> layers) {
  const auto room = [](const auto& numbers) { return StepNumbers::room(numbers.size() * sizeof(numbers[0])); };
  size_t bytes = room(token_ids_) + room(positions_) + room(query_offsets_) + room(context_lengths_);
  for (const Group& group : groups_) bytes += room(group.slots) + room(group.block_tables);
  numbers_.begin(bytes);
  group_views_.clear();
  for (const Group& group : groups_) {
    group_views_.push_back({.slots = numbers_.add(group.slots), .block_tables = numbers_.add(group.block_tables)});
  }
  const nn::Batch batch{.num_tokens = static_cast<int64_t>(token_ids_.size()),
                        .num_sequences = static_cast<int32_t>(context_lengths_.size()),
                        .token_ids = numbers_.add(token_ids_),
                        .positions = numbers_.add(positions_),
                        .query_offsets = numbers_.add(query_offsets_),
                        .context_lengths = numbers_.add(context_lengths_),
                        .prompt_lengths = prompt_lengths_.data(),
                        .block_table_stride = static_cast<int64_t>(block_table_stride_),
                        .groups = group_views_,
                        .layers = layers};
  numbers_.upload();
  return batch;
}

}  // namespace quire::runner
