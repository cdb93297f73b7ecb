#include "runner/hidden_store.h"

#include <algorithm>

#include "base/check.h"

namespace quire::runner {

void HiddenStore::take(const nn::StepContext& step, size_t index, const nn::HiddenStates& states) {
  if (step.workspace.measures()) return;
  const auto rows = static_cast<size_t>(states.residual.num_rows);
  const auto size = static_cast<size_t>(hidden_size_);
  const auto row_floats = static_cast<size_t>(num_floats());
  step_.resize(rows * row_floats);
  const float* residual = states.residual.floats();
  const float* delta = states.pending ? states.delta.floats() : nullptr;
  for (size_t row = 0; row < rows; ++row, residual += size) {
    float* to = step_.data() + row * row_floats + index * size;
    if (delta == nullptr) {
      std::copy_n(residual, size, to);
      continue;
    }
    for (size_t i = 0; i < size; ++i) to[i] = residual[i] + delta[i];
    delta += size;
  }
}

void HiddenStore::settle(const StepPlan& plan) {
  for (const SequenceId id : plan.retired) forget(id);
  const auto row_floats = static_cast<size_t>(num_floats());
  const float* from = step_.data();
  for (const ScheduledSequence& run : plan.scheduled) {
    const auto floats = static_cast<size_t>(run.num_rows()) * row_floats;
    QUIRE_CHECK(from + floats <= step_.data() + step_.size());
    Waiting& waiting = waiting_[run.id];
    num_rows_ -= count(waiting);
    const int64_t kept = run.num_computed_tokens - waiting.first;
    if (kept < 0 || kept > count(waiting)) {
      waiting.rows.clear();
      waiting.first = run.num_computed_tokens;
    } else {
      waiting.rows.resize(static_cast<size_t>(kept) * row_floats);
    }
    waiting.rows.insert(waiting.rows.end(), from, from + floats);
    num_rows_ += count(waiting);
    from += floats;
  }
  keep_within();
}

void HiddenStore::keep_within() {
  while (num_rows_ > most_rows_) {
    auto longest = waiting_.begin();
    for (auto one = waiting_.begin(); one != waiting_.end(); ++one) {
      if (count(one->second) > count(longest->second)) longest = one;
    }
    // Half of them at once: to make room for one row each step is to move all of them each step.
    const int64_t many = (count(longest->second) + 1) / 2;
    drop(longest->second, std::max(many, std::min(num_rows_ - most_rows_, count(longest->second))));
  }
}

void HiddenStore::drop(Waiting& waiting, int64_t rows) {
  waiting.rows.erase(waiting.rows.begin(), waiting.rows.begin() + rows * num_floats());
  waiting.first += static_cast<int32_t>(rows);
  num_rows_ -= rows;
}

int32_t HiddenStore::begin(SequenceId id) const {
  const auto found = waiting_.find(id);
  return found == waiting_.end() ? 0 : found->second.first;
}

int32_t HiddenStore::end(SequenceId id) const {
  const auto found = waiting_.find(id);
  return found == waiting_.end() ? 0 : found->second.first + static_cast<int32_t>(count(found->second));
}

const float* HiddenStore::rows(SequenceId id, int32_t first) const {
  QUIRE_CHECK(first >= begin(id) && first < end(id));
  const Waiting& waiting = waiting_.at(id);
  return waiting.rows.data() + (first - waiting.first) * num_floats();
}

void HiddenStore::drop_before(SequenceId id, int32_t position) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end() || position <= found->second.first) return;
  drop(found->second, std::min<int64_t>(position - found->second.first, count(found->second)));
}

void HiddenStore::forget(SequenceId id) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return;
  num_rows_ -= count(found->second);
  waiting_.erase(found);
}

}  // namespace quire::runner
