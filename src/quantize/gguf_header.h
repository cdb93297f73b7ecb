// The front of a GGUF file (version 3): metadata and the directory of tensors, from which follows where each one lies.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/gguf_metadata.h"
#include "tensor/tensor.h"

namespace quire::quantize {

class GgufHeader {
 public:
  static constexpr int64_t kAlignment = 32;  // what a file has that does not say another

  // A key that is set again has its last value. Pairs are written in the order of their keys.
  void set(std::string_view key, std::string_view text);
  void set(std::string_view key, uint32_t number);
  void set(std::string_view key, float number);
  void set(std::string_view key, bool truth);
  void set(std::string_view key, std::span<const std::string> texts);
  void set(std::string_view key, std::span<const float> numbers);
  void set(std::string_view key, std::span<const int32_t> numbers);
  // As another file has it.
  void set(std::string_view key, const checkpoint::GgufValue& value);
  void remove(std::string_view key) { pairs_.erase(std::string(key)); }

  // Tensors follow each other in the order of these calls. shape: outermost first. Returns the tensor's number.
  size_t add_tensor(std::string_view name, const Shape& shape, DType dtype);

  // What the file begins with, up to the first tensor's first byte.
  std::vector<uint8_t> bytes() const;
  // Of a tensor, from the end of bytes().
  int64_t offset_of(size_t tensor) const { return tensors_[tensor].offset; }
  // Of all tensors, with what lies between them.
  int64_t data_bytes() const { return data_bytes_; }

 private:
  struct Tensor {
    std::string name;
    Shape shape;
    DType dtype;
    int64_t offset;  // from the first tensor
  };
  std::map<std::string, std::vector<uint8_t>> pairs_;  // type and value, as they are encoded
  std::vector<Tensor> tensors_;
  int64_t data_bytes_ = 0;
};

}  // namespace quire::quantize
