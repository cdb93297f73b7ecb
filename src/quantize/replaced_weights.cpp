#include "quantize/replaced_weights.h"

namespace quire::quantize {

ReplacedWeights::ReplacedWeights(std::shared_ptr<const checkpoint::Checkpoint> base)
    : base_(std::move(base)), tensors_(base_->tensors().begin(), base_->tensors().end()) {
  for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

void ReplacedWeights::replace(const std::string& name, std::vector<float> values) {
  const auto found = index_.find(name);
  QUIRE_CHECK(found != index_.end());
  TensorView& view = tensors_[found->second].view;
  QUIRE_CHECK(std::ssize(values) == view.shape.num_elements());
  std::vector<float>& held = values_[name] = std::move(values);
  view.data = held.data();
  view.dtype = DType::kF32;
}

const checkpoint::CheckpointTensor* ReplacedWeights::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace quire::quantize
