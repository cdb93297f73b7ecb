// Shapes, views and owners. A view is dense, row-major and untyped but for its DType: ops check
// both. Memory comes from an Allocator that the caller hands in; nothing here knows a device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "base/check.h"
#include "tensor/dtype.h"

namespace quire {

// Up to five dimensions, outermost first: what image encoders have beside a text model.
class Shape {
 public:
  static constexpr int kMaxRank = 5;
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    QUIRE_CHECK(dims.size() <= kMaxRank);
    for (int64_t dim : dims) push_back(dim);
  }
  int rank() const { return rank_; }
  int64_t operator[](int i) const {
    QUIRE_DCHECK(i >= 0 && i < rank_);
    return dims_[static_cast<size_t>(i)];
  }
  void push_back(int64_t dim) {
    QUIRE_CHECK(rank_ < kMaxRank && dim >= 0);
    dims_[static_cast<size_t>(rank_++)] = dim;
  }
  int64_t num_elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[static_cast<size_t>(i)];
    return n;
  }
  bool operator==(const Shape&) const = default;
  std::string to_string() const;  // "[2, 64]"

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

enum class DeviceKind : uint8_t { kCpu, kCuda };
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int32_t index = 0;
  bool operator==(const Device&) const = default;
};

// Memory on one device. Thread-safe. Implemented beside the kernels of a device (ops/cpu,
// ops/cuda).
class Allocator {
 public:
  virtual ~Allocator() = default;
  virtual Device device() const = 0;
  // At least `bytes` bytes, aligned to 64; nullptr when there is no memory.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory, size_t bytes) = 0;
};

// Somebody else's memory, seen as a dense row-major array. Copy freely; it must not outlive the
// memory.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  int64_t bytes() const {
    if (shape.rank() == 0) return row_bytes(dtype, 1);
    const int64_t last = shape[shape.rank() - 1];
    return last == 0 ? 0 : shape.num_elements() / last * row_bytes(dtype, last);
  }
};

// Owned memory of one allocator.
class Buffer {
 public:
  Buffer() = default;
  // REQUIRES: the allocator outlives the buffer. data() is nullptr when there was no memory.
  Buffer(Allocator& allocator, size_t bytes)
      : allocator_(&allocator), data_(allocator.allocate(bytes)), bytes_(bytes) {}
  ~Buffer() { reset(); }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() { return data_; }
  const void* data() const { return data_; }
  template <typename T>
  T* as() {
    return static_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void reset() {
    if (data_ != nullptr) allocator_->release(data_, bytes_);
    data_ = nullptr;
  }
  void swap(Buffer& other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  Allocator* allocator_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace quire
