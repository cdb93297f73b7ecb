// States of a model's layers that somebody else goes on from, kept by sequence until they have been read.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "nn/hidden_taps.h"
#include "types/step_plan.h"

namespace quire::runner {

// Rows of states that wait to be read: a long prompt's, and a step of many sequences.
inline constexpr int64_t kMostWaitingRows = 4096;

class HiddenStore final : public nn::HiddenTaps {
 public:
  // layers: before which the states are taken, each [hidden_size]; of a row they stand side by side. At most so many
  // rows of all sequences wait; beyond them the oldest of whoever has most go. Of a backend in host memory.
  HiddenStore(std::vector<int32_t> layers, int64_t hidden_size, int64_t most_rows)
      : layers_(std::move(layers)), hidden_size_(hidden_size), most_rows_(most_rows) {}

  std::span<const int32_t> layers() const override { return layers_; }
  void take(const nn::StepContext& step, size_t index, const nn::HiddenStates& states) override;

  // The step whose states were taken last has been computed: its rows become the sequences'. What a sequence has from
  // a run's first position on is replaced.
  void settle(const StepPlan& plan);

  // Positions [begin(), end()) of a sequence that wait; both 0 where there are none.
  int32_t begin(SequenceId id) const;
  int32_t end(SequenceId id) const;
  // [count, num_floats()], until the next call of any other. REQUIRES: they wait.
  const float* rows(SequenceId id, int32_t first) const;
  void drop_before(SequenceId id, int32_t position);
  void forget(SequenceId id);

  int64_t num_floats() const { return static_cast<int64_t>(layers_.size()) * hidden_size_; }  // of a row
  int64_t bytes() const { return most_rows_ * num_floats() * static_cast<int64_t>(sizeof(float)); }

 private:
  struct Waiting {
    int32_t first = 0;  // position
    std::vector<float> rows;
  };
  int64_t count(const Waiting& waiting) const { return static_cast<int64_t>(waiting.rows.size()) / num_floats(); }
  void drop(Waiting& waiting, int64_t rows);
  void keep_within();

  const std::vector<int32_t> layers_;
  const int64_t hidden_size_;
  const int64_t most_rows_;
  int64_t num_rows_ = 0;     // that wait
  std::vector<float> step_;  // of the last one: [rows, num_floats()]
  std::unordered_map<SequenceId, Waiting> waiting_;
};

}  // namespace quire::runner
