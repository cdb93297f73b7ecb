// Scratch of one step: a stack of float buffers in memory taken once, at start. How much that has to be is what a
// workspace without memory sees the largest step take.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "ops/view.h"

namespace quire::nn {

class Workspace {
 public:
  static constexpr int64_t kAlign = 16;  // floats: a cache line

  // Measures: has no memory and gives none. What a step calls on it is not run (StepContext).
  Workspace() = default;
  // REQUIRES: memory holds capacity floats and outlives the workspace.
  Workspace(float* memory, int64_t capacity) : memory_(memory), capacity_(capacity) { QUIRE_CHECK(memory != nullptr); }

  static constexpr int64_t rounded(int64_t floats) { return (floats + kAlign - 1) / kAlign * kAlign; }

  // Uninitialised; lives until the workspace is rewound past it. REQUIRES: what is taken follows from the model's
  // configuration and the batch alone, not from weights, which are not there when it is measured.
  float* take(int64_t floats) {
    float* result = measures() ? nullptr : memory_ + used_;
    used_ += rounded(floats);
    most_used_ = std::max(most_used_, used_);
    QUIRE_CHECK(measures() || used_ <= capacity_);
    return result;
  }
  // [num_rows, num_columns] of floats, dense.
  ops::View take(int64_t num_rows, int64_t num_columns) {
    return {take(num_rows * num_columns), num_rows, num_columns};
  }
  bool measures() const { return memory_ == nullptr; }
  int64_t most_used() const { return most_used_; }  // floats, since the beginning
  int64_t mark() const { return used_; }
  void rewind(int64_t mark) { used_ = mark; }

 private:
  float* memory_ = nullptr;
  int64_t capacity_ = 0;
  int64_t used_ = 0;
  int64_t most_used_ = 0;
};

}  // namespace quire::nn
