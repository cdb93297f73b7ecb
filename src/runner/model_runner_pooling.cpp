// What a runner does with sequences that are pooled: vectors and scores in the place of tokens.
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "runner/model_runner.h"

namespace quire::runner {

// What the step's hidden states are to the sequences that are pooled.
void ModelRunner::pool(const Step& step, StepResult& result) {
  const std::vector<ScheduledSequence>& runs = step.plan.scheduled;
  const std::vector<PoolingType>& types = model_->config().pooling.types;
  const int64_t size = model_->config().hidden_size;
  std::vector<int64_t> first_rows;
  int64_t row = 0;
  for (const ScheduledSequence& run : runs) first_rows.push_back(std::exchange(row, row + run.num_rows()));
  const float* hidden = step.hidden.floats();
  if (!backend_.computes_in_host_memory()) {
    pooled_hidden_.resize(static_cast<size_t>(row * size));
    backend_.download(pooled_hidden_.data(), hidden, pooled_hidden_.size() * sizeof(float));
    hidden = pooled_hidden_.data();
  }
  backend_.host_parallel_for(static_cast<int64_t>(runs.size()), [&](int64_t task, int /*thread*/) {
    const auto at = static_cast<size_t>(task);
    SequenceState& state = states_.at(runs[at].id);
    SequenceResult& sequence = result.sequences[at];
    if (state.output_kind == OutputKind::kToken || !state.fault.ok() || !sequence.error.ok()) return;
    const HiddenPool::Span prompt{.from = state.pooled_from, .length = state.num_prompt_tokens};
    state.pool.take(types, hidden + first_rows[at] * size, runs[at].num_computed_tokens, runs[at].num_new_tokens,
                    prompt, size);
    if (!state.pool.is_complete(state.num_prompt_tokens)) return;
    auto pooled = state.pool.vector();
    sequence.error = pooled.status();
    if (pooled.ok()) sequence.pooled = after_pooling_ == nullptr ? std::move(*pooled) : after_pooling_->apply(*pooled);
  });
  if (model_->config().task != ModelTask::kClassify) return;
  std::vector<SequenceResult*> pooled;
  for (SequenceResult& sequence : result.sequences) {
    if (!sequence.pooled.empty()) pooled.push_back(&sequence);
  }
  score(pooled);
}

// Pooled hidden states become what the head gives of them; without a head for scores, the logits of the tokens that the
// request allows.
void ModelRunner::score(const std::vector<SequenceResult*>& pooled) {
  const ModelConfig& config = model_->config();
  const bool has_head = config.pooling.num_labels > 0;
  const int64_t num_outputs = num_head_outputs(config);
  for (size_t begin = 0; begin < pooled.size(); begin += logit_rows_) {
    const auto piece = std::span(pooled).subspan(begin, std::min(logit_rows_, pooled.size() - begin));
    nn::Workspace workspace = workspace_of(logit_memory_);
    const auto num_rows = static_cast<int64_t>(piece.size());
    const ops::View rows = workspace.take(num_rows, config.hidden_size);
    const ops::View outputs = workspace.take(num_rows, num_outputs);
    std::vector<float> numbers;
    for (const SequenceResult* one : piece) numbers.insert(numbers.end(), one->pooled.begin(), one->pooled.end());
    backend_.upload(rows.data, numbers.data(), numbers.size() * sizeof(float));
    const nn::Batch none;
    const nn::StepContext step{.backend = backend_,
                               .batch = none,
                               .workspace = workspace,
                               .rows = {nn::RowTokens::Kind::kNone, {}},
                               .communicator = ranks_.tensor};
    if (has_head) {
      model_->scores(step, rows, outputs);
    } else {
      model_->logits(step, rows, outputs);
    }
    numbers.resize(static_cast<size_t>(num_rows * num_outputs));
    backend_.download(numbers.data(), outputs.floats(), numbers.size() * sizeof(float));
    for (int64_t i = 0; i < num_rows; ++i) {
      SequenceResult& sequence = *piece[static_cast<size_t>(i)];
      const auto given =
          std::span(numbers).subspan(static_cast<size_t>(i * num_outputs), static_cast<size_t>(num_outputs));
      sequence.pooled.clear();
      if (has_head) {
        sequence.pooled.assign(given.begin(), given.end());
      } else {
        for (const TokenId id : *states_.at(sequence.id).params->allowed_token_ids) {
          sequence.pooled.push_back(given[static_cast<size_t>(id)]);
        }
      }
      if (std::ranges::all_of(sequence.pooled, [](float value) { return std::isfinite(value); })) continue;
      sequence.pooled.clear();
      sequence.error = internal_error("the head's numbers are not finite");
    }
  }
}

}  // namespace quire::runner
