#include "runner/tapped_states.h"

#include <algorithm>

#include "base/check.h"

namespace quire::runner {

TappedStates::TappedStates(std::vector<int32_t> layers, int64_t hidden_size, ops::Backend& backend, int64_t most_rows)
    : layers_(std::move(layers)), hidden_size_(hidden_size), backend_(backend), most_rows_(most_rows) {
  if (backend.computes_in_host_memory()) return;
  on_device_ = Buffer(backend.allocator(), layers_.size() * floats(most_rows) * sizeof(float));
}

void TappedStates::take(const nn::StepContext& step, size_t index, const nn::HiddenStates& states) {
  if (step.workspace.measures()) return;
  const int64_t rows = states.residual.num_rows;
  const bool on_host = backend_.computes_in_host_memory();
  QUIRE_CHECK(states.residual.num_columns == hidden_size_ && (on_host || rows <= most_rows_));
  float* const at = on_host ? first(rows, index + 1).data() + index * floats(rows)
                            : on_device_.as<float>() + index * floats(most_rows_);
  const ops::View to(at, rows, hidden_size_);
  step.copy(states.residual, to);
  if (!states.pending) return;
  step(ops::AddArgs{.hidden = to.floats(),
                    .delta = states.delta.floats(),
                    .delta_scale = 1,
                    .num_tokens = rows,
                    .size = hidden_size_});
}

std::span<float> TappedStates::first(int64_t rows, size_t num_layers) {
  QUIRE_CHECK(num_layers <= layers_.size());
  states_.resize(layers_.size() * floats(rows));
  return std::span(states_).first(num_layers * floats(rows));
}

void TappedStates::fetch(int64_t rows) {
  if (backend_.computes_in_host_memory()) return;
  states_.resize(layers_.size() * floats(rows));
  if (rows == 0) return;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    backend_.download(states_.data() + layer * floats(rows), on_device_.as<float>() + layer * floats(most_rows_),
                      floats(rows) * sizeof(float));
  }
}

}  // namespace quire::runner
