// States between a model's layers that a head guesses from, as one rank takes them in a step. Stages of a pipeline hand
// on what they have taken, so that the last one has all of them (model_runner_ranks.cpp).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "nn/hidden_taps.h"
#include "ops/backend.h"
#include "tensor/tensor.h"

namespace quire::runner {

class TappedStates final : public nn::HiddenTaps {
 public:
  // layers: as HiddenTaps has them; hidden_size: of each. A device with memory of its own keeps a step of up to
  // most_rows rows there until they are fetched; the copies may be recorded with the step.
  TappedStates(std::vector<int32_t> layers, int64_t hidden_size, ops::Backend& backend, int64_t most_rows);
  bool has_memory() const { return backend_.computes_in_host_memory() || on_device_.data() != nullptr; }

  std::span<const int32_t> layers() const override { return layers_; }
  void take(const nn::StepContext& step, size_t index, const nn::HiddenStates& states) override;

  // Of a step of so many rows, what is taken before the first `num_layers` of the layers: [num_layers, rows,
  // hidden_size]. May be written to, where another stage has taken it. REQUIRES: a backend in host memory, or fetch().
  std::span<float> first(int64_t rows, size_t num_layers);
  // The first so many rows of the last step come to the host. Waits for the device.
  void fetch(int64_t rows);
  // Of the last step: [layers, rows, hidden_size]. REQUIRES: fetch().
  const std::vector<float>& all() const { return states_; }
  // The same, given away.
  std::vector<float> release() { return std::exchange(states_, {}); }

 private:
  size_t floats(int64_t rows) const { return static_cast<size_t>(rows * hidden_size_); }  // of a layer

  const std::vector<int32_t> layers_;
  const int64_t hidden_size_;
  ops::Backend& backend_;
  const int64_t most_rows_;
  Buffer on_device_;  // [layers, most_rows, hidden_size]
  std::vector<float> states_;
};

}  // namespace quire::runner
