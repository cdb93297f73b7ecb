// Scratch of one step: a stack of float buffers in memory taken once, at start.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"

namespace quire::nn {

class Workspace {
 public:
  static constexpr int64_t kAlign = 16;  // floats: a cache line

  // REQUIRES: memory holds capacity floats and outlives the workspace.
  Workspace(float* memory, int64_t capacity) : memory_(memory), capacity_(capacity) {}

  static constexpr int64_t rounded(int64_t floats) { return (floats + kAlign - 1) / kAlign * kAlign; }

  // Uninitialised; lives until the workspace is rewound past it. Running out is a fault of the
  // model's own estimate.
  float* take(int64_t floats) {
    float* result = memory_ + used_;
    used_ += rounded(floats);
    most_used_ = std::max(most_used_, used_);
    QUIRE_CHECK(used_ <= capacity_);
    return result;
  }
  int64_t most_used() const { return most_used_; }  // floats, since the beginning
  int64_t mark() const { return used_; }
  void rewind(int64_t mark) { used_ = mark; }

 private:
  float* memory_;
  int64_t capacity_;
  int64_t used_ = 0;
  int64_t most_used_ = 0;
};

}  // namespace quire::nn
