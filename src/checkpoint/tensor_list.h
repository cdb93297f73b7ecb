// The tensors of a checkpoint, found by name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"

namespace quire::checkpoint {

class TensorList {
 public:
  TensorList() = default;
  // Errors: data_loss when two tensors have one name (two stored names can map to the same).
  static Result<TensorList> make(std::vector<CheckpointTensor> tensors);

  std::span<const CheckpointTensor> all() const { return tensors_; }
  const CheckpointTensor* find(std::string_view name) const;
  int64_t total_bytes() const;
  // Most common dtype of the tensors with two dimensions and more, or of all where there are none; the one with more
  // bytes where two are equally common. Empty without tensors.
  std::string dtype_summary() const;

 private:
  std::vector<CheckpointTensor> tensors_;
  std::unordered_map<std::string_view, size_t> index_;  // keys: the names in tensors_, whose memory does not move
};

}  // namespace quire::checkpoint
