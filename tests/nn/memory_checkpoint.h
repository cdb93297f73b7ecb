// A checkpoint that is made in memory.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/quantization_config.h"

namespace quire::nn {

// As a file has them.
template <typename T>
std::vector<uint8_t> stored_bytes(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Tensors in memory, named as a checkpoint's.
class MemoryCheckpoint final : public checkpoint::Checkpoint {
 public:
  void add(const std::string& name, DType dtype, const Shape& shape, std::vector<uint8_t> bytes) {
    memory_.push_back(std::move(bytes));
    tensors_.push_back({name, name, {memory_.back().data(), dtype, shape}});
    ASSERT_EQ(tensors_.back().view.bytes(), static_cast<int64_t>(memory_.back().size())) << name;
  }

  // The same in the place of the tensor of that name.
  void replace(const std::string& name, DType dtype, const Shape& shape, std::vector<uint8_t> bytes) {
    std::erase_if(tensors_, [&](const checkpoint::CheckpointTensor& tensor) { return tensor.name == name; });
    add(name, dtype, shape, std::move(bytes));
  }

  void set_config(boost::json::object config) {
    config_ = std::move(config);
    const boost::json::value* said = config_.if_contains("quantization_config");
    if (said == nullptr || !said->as_object().contains("quant_method")) return;
    auto quantization = checkpoint::QuantizationConfig::parse(config_);
    ASSERT_TRUE(quantization.ok()) << quantization.status().message();
    quantization_ = *std::move(quantization);
  }
  const checkpoint::QuantizationConfig* quantization() const override {
    return quantization_ ? &*quantization_ : nullptr;
  }

  checkpoint::Format format() const override { return checkpoint::Format::kSafetensors; }
  const boost::json::object& config() const override { return config_; }
  const boost::json::object& generation_config() const override { return nothing_; }
  std::span<const checkpoint::CheckpointTensor> tensors() const override { return tensors_; }
  const checkpoint::CheckpointTensor* find(std::string_view name) const override {
    for (const checkpoint::CheckpointTensor& tensor : tensors_) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
  std::optional<Vocabulary> vocabulary() const override { return std::nullopt; }
  std::string tokenizer_json() const override { return ""; }
  const boost::json::object& tokenizer_config() const override { return nothing_; }
  std::string chat_template() const override { return ""; }
  int64_t total_tensor_bytes() const override { return 0; }
  std::string dtype_summary() const override { return ""; }

 private:
  std::deque<std::vector<uint8_t>> memory_;  // whose elements do not move
  std::vector<checkpoint::CheckpointTensor> tensors_;
  boost::json::object config_, nothing_;
  std::optional<checkpoint::QuantizationConfig> quantization_;
};

}  // namespace quire::nn
