// States of a model's layers that somebody else goes on from, kept by sequence until they have been read.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "types/step_plan.h"

namespace quire::runner {

// Rows of states that wait to be read: a long prompt's, and a step of many sequences.
inline constexpr int64_t kMostWaitingRows = 4096;

// Whose rows a step computed, one after the other: what is known of a plan when its states come.
struct StepRows {
  struct Run {
    SequenceId id = 0;
    int32_t first = 0;  // position
    int32_t count = 0;
  };
  std::vector<SequenceId> retired;
  std::vector<Run> runs;
  int64_t num_rows = 0;

  static StepRows of(const StepPlan& plan);
};

class HiddenStore {
 public:
  // layers: before which the states are taken, each [hidden_size]; of a row they stand side by side. At most so many
  // rows of all sequences wait; beyond them the oldest of whoever has most go.
  HiddenStore(std::vector<int32_t> layers, int64_t hidden_size, int64_t most_rows)
      : layers_(std::move(layers)), hidden_size_(hidden_size), most_rows_(most_rows) {}

  // As nn::HiddenTaps has them.
  const std::vector<int32_t>& layers() const { return layers_; }
  int64_t hidden_size() const { return hidden_size_; }

  // A step's rows, of which states have been taken, become the sequences'. What a sequence has from a run's first
  // position on is replaced. states: [layers, rows, hidden_size] (TappedStates). Errors: data_loss where there are more
  // or fewer of them, and nothing is changed.
  Status settle(const StepRows& rows, std::span<const float> states);

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
  int64_t num_rows_ = 0;  // that wait
  std::unordered_map<SequenceId, Waiting> waiting_;
};

}  // namespace quire::runner
