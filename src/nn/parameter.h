// A model's small arrays of floats: weights of norms, biases, tables of rotations.
#pragma once

#include <span>

#include "nn/loader.h"
#include "tensor/tensor.h"

namespace quire::nn {

// Where the device reads them.
class Parameter {
 public:
  Parameter() = default;
  // A copy of `values`; none of no values, which is what a plan gives. No memory: the loader fails.
  Parameter(Loader& loader, std::span<const float> values);

  bool empty() const { return size_ == 0; }
  int64_t size() const { return size_; }
  const float* data() const { return memory_.as<float>(); }  // nullptr when empty

 private:
  Buffer memory_;
  int64_t size_ = 0;
};

}  // namespace quire::nn
