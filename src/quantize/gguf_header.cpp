#include "quantize/gguf_header.h"

#include <cstring>

namespace quire::quantize {
namespace {

using checkpoint::GgufValueType;

class Bytes {
 public:
  template <typename T>
  void number(T value) {
    raw(&value, sizeof(value));
  }
  void type(GgufValueType type) { number(static_cast<uint32_t>(type)); }
  void text(std::string_view text) {
    number(static_cast<uint64_t>(text.size()));
    raw(text.data(), text.size());
  }
  void raw(const void* data, size_t size) {
    const auto* from = static_cast<const uint8_t*>(data);
    bytes_.insert(bytes_.end(), from, from + size);
  }
  void pad(int64_t alignment) {
    while (static_cast<int64_t>(bytes_.size()) % alignment != 0) bytes_.push_back(0);
  }
  std::vector<uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<uint8_t> bytes_;
};

template <typename T>
std::vector<uint8_t> number_pair(GgufValueType type, T value) {
  Bytes out;
  out.type(type);
  out.number(value);
  return out.take();
}

template <typename T>
std::vector<uint8_t> array_pair(GgufValueType element, std::span<const T> values) {
  Bytes out;
  out.type(GgufValueType::kArray);
  out.type(element);
  out.number(static_cast<uint64_t>(values.size()));
  out.raw(values.data(), values.size_bytes());
  return out.take();
}

}  // namespace

void GgufHeader::set(std::string_view key, std::string_view text) {
  Bytes out;
  out.type(GgufValueType::kString);
  out.text(text);
  pairs_[std::string(key)] = out.take();
}
void GgufHeader::set(std::string_view key, uint32_t number) {
  pairs_[std::string(key)] = number_pair(GgufValueType::kUint32, number);
}
void GgufHeader::set(std::string_view key, float number) {
  pairs_[std::string(key)] = number_pair(GgufValueType::kFloat32, number);
}
void GgufHeader::set(std::string_view key, bool truth) {
  pairs_[std::string(key)] = number_pair(GgufValueType::kBool, static_cast<uint8_t>(truth));
}
void GgufHeader::set(std::string_view key, std::span<const std::string> texts) {
  Bytes out;
  out.type(GgufValueType::kArray);
  out.type(GgufValueType::kString);
  out.number(static_cast<uint64_t>(texts.size()));
  for (const std::string& text : texts) out.text(text);
  pairs_[std::string(key)] = out.take();
}
void GgufHeader::set(std::string_view key, std::span<const float> numbers) {
  pairs_[std::string(key)] = array_pair(GgufValueType::kFloat32, numbers);
}
void GgufHeader::set(std::string_view key, std::span<const int32_t> numbers) {
  pairs_[std::string(key)] = array_pair(GgufValueType::kInt32, numbers);
}

void GgufHeader::set(std::string_view key, const checkpoint::GgufValue& value) {
  Bytes out;
  out.type(value.type);
  if (value.type == GgufValueType::kArray) {
    out.type(value.element_type);
    out.number(value.count);
  }
  if (value.type == GgufValueType::kString) out.number(static_cast<uint64_t>(value.data.size()));
  out.raw(value.data.data(), value.data.size());
  pairs_[std::string(key)] = out.take();
}

size_t GgufHeader::add_tensor(std::string_view name, const Shape& shape, DType dtype) {
  tensors_.push_back({std::string(name), shape, dtype, data_bytes_});
  const int64_t bytes = TensorView{nullptr, dtype, shape}.bytes();
  data_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return tensors_.size() - 1;
}

std::vector<uint8_t> GgufHeader::bytes() const {
  Bytes out;
  out.raw("GGUF", 4);
  out.number(uint32_t{3});
  out.number(static_cast<uint64_t>(tensors_.size()));
  out.number(static_cast<uint64_t>(pairs_.size()));
  for (const auto& [key, value] : pairs_) {
    out.text(key);
    out.raw(value.data(), value.size());
  }
  for (const Tensor& tensor : tensors_) {
    out.text(tensor.name);
    out.number(static_cast<uint32_t>(tensor.shape.rank()));
    for (int i = tensor.shape.rank(); i-- > 0;) out.number(static_cast<uint64_t>(tensor.shape[i]));
    out.number(checkpoint::ggml_type_of(tensor.dtype));
    out.number(static_cast<uint64_t>(tensor.offset));
  }
  out.pad(kAlignment);
  return out.take();
}

}  // namespace quire::quantize
