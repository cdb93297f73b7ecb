// A checkpoint some of whose weights are others: what a layer is once it has been rounded.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace quire::quantize {

class ReplacedWeights final : public checkpoint::Checkpoint {
 public:
  explicit ReplacedWeights(std::shared_ptr<const checkpoint::Checkpoint> base);

  // In the place of the tensor of that name, of the same shape. REQUIRES: the base has it.
  void replace(const std::string& name, std::vector<float> values);

  checkpoint::Format format() const override { return base_->format(); }
  const boost::json::object& config() const override { return base_->config(); }
  const checkpoint::GgufDescription* gguf() const override { return base_->gguf(); }
  const checkpoint::QuantizationConfig* quantization() const override { return base_->quantization(); }
  const boost::json::object& generation_config() const override { return base_->generation_config(); }
  std::span<const checkpoint::CheckpointTensor> tensors() const override { return tensors_; }
  const checkpoint::CheckpointTensor* find(std::string_view name) const override;
  std::optional<Vocabulary> vocabulary() const override { return base_->vocabulary(); }
  std::string tokenizer_json() const override { return base_->tokenizer_json(); }
  std::string sentencepiece_model() const override { return base_->sentencepiece_model(); }
  const boost::json::object& tokenizer_config() const override { return base_->tokenizer_config(); }
  std::string chat_template() const override { return base_->chat_template(); }
  int64_t total_tensor_bytes() const override { return base_->total_tensor_bytes(); }
  std::string dtype_summary() const override { return base_->dtype_summary(); }

 private:
  std::shared_ptr<const checkpoint::Checkpoint> base_;
  std::vector<checkpoint::CheckpointTensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
  std::map<std::string, std::vector<float>> values_;
};

}  // namespace quire::quantize
