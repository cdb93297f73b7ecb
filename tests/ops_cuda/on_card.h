// Arrays of a test in a card's memory, or in that of the emulated one.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <vector>

namespace quire::ops::cuda::testing {

template <typename T>
class OnCard {
 public:
  explicit OnCard(const std::vector<T>& values) : size_(values.size()) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), bytes() + 1), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  OnCard(size_t size, T value) : OnCard(std::vector<T>(size, value)) {}
  ~OnCard() { cudaFree(data_); }
  OnCard(const OnCard&) = delete;
  OnCard& operator=(const OnCard&) = delete;

  T* data() const { return data_; }
  std::vector<T> read() const {
    std::vector<T> values(size_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

 private:
  size_t bytes() const { return size_ * sizeof(T); }
  T* data_ = nullptr;
  size_t size_;
};

}  // namespace quire::ops::cuda::testing
