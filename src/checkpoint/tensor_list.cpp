#include "checkpoint/tensor_list.h"

#include <algorithm>
#include <map>
#include <utility>

#include "checkpoint/text_quote.h"

namespace quire::checkpoint {

Result<TensorList> TensorList::make(std::vector<CheckpointTensor> tensors) {
  TensorList list;
  list.tensors_ = std::move(tensors);
  list.index_.reserve(list.tensors_.size());
  for (size_t i = 0; i < list.tensors_.size(); ++i) {
    const CheckpointTensor& tensor = list.tensors_[i];
    const auto [other, is_new] = list.index_.emplace(tensor.name, i);
    if (!is_new) {
      return data_loss("tensors {} and {} are both {}", in_quotes(list.tensors_[other->second].stored_name),
                       in_quotes(tensor.stored_name), in_quotes(tensor.name));
    }
  }
  return list;
}

const CheckpointTensor* TensorList::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

int64_t TensorList::total_bytes() const {
  int64_t total = 0;
  for (const CheckpointTensor& tensor : tensors_) total += tensor.view.bytes();
  return total;
}

std::string TensorList::dtype_summary() const {
  const bool has_matrices =
      std::any_of(tensors_.begin(), tensors_.end(), [](const auto& tensor) { return tensor.view.shape.rank() >= 2; });
  std::map<DType, std::pair<int64_t, int64_t>> uses;  // tensors, bytes
  for (const CheckpointTensor& tensor : tensors_) {
    if (has_matrices && tensor.view.shape.rank() < 2) continue;
    auto& [count, bytes] = uses[tensor.view.dtype];
    ++count;
    bytes += tensor.view.bytes();
  }
  const auto most =
      std::max_element(uses.begin(), uses.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == uses.end() ? "" : std::string(name(most->first));
}

}  // namespace quire::checkpoint
