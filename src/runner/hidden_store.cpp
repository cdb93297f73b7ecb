#include "runner/hidden_store.h"

#include <algorithm>

#include "base/check.h"

namespace quire::runner {

StepRows StepRows::of(const StepPlan& plan) {
  StepRows rows{.retired = plan.retired};
  for (const ScheduledSequence& run : plan.scheduled) {
    rows.runs.push_back({run.id, run.num_computed_tokens, run.num_rows()});
    rows.num_rows += run.num_rows();
  }
  return rows;
}

Status HiddenStore::settle(const StepRows& step, std::span<const float> states) {
  const auto layer_floats = static_cast<size_t>(step.num_rows * hidden_size_);
  if (states.size() != layers_.size() * layer_floats) {
    return data_loss("a step of {} rows gave {} numbers of the model's states; expected {}", step.num_rows,
                     states.size(), layers_.size() * layer_floats);
  }
  for (const SequenceId id : step.retired) forget(id);
  const auto row_floats = static_cast<size_t>(num_floats());
  const auto size = static_cast<size_t>(hidden_size_);
  const float* from = states.data();
  for (const StepRows::Run& run : step.runs) {
    Waiting& waiting = waiting_[run.id];
    num_rows_ -= count(waiting);
    const int64_t kept = run.first - waiting.first;
    if (kept < 0 || kept > count(waiting)) {
      waiting.rows.clear();
      waiting.first = run.first;
    } else {
      waiting.rows.resize(static_cast<size_t>(kept) * row_floats);
    }
    size_t at = waiting.rows.size();
    waiting.rows.resize(at + static_cast<size_t>(run.count) * row_floats);
    for (int32_t row = 0; row < run.count; ++row, from += size) {
      for (size_t layer = 0; layer < layers_.size(); ++layer, at += size) {
        std::copy_n(from + layer * layer_floats, size, waiting.rows.data() + at);
      }
    }
    num_rows_ += count(waiting);
  }
  keep_within();
  return {};
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
