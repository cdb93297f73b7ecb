// The weight of a Linear as a backend keeps it: repacked once at load into the backend's panels, in its own format.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace quire::ops {

class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  virtual DType dtype() const = 0;
  virtual int64_t rows() const = 0;     // N, output features
  virtual int64_t columns() const = 0;  // K, input features
  virtual int64_t bytes() const = 0;    // memory held
};

}  // namespace quire::ops
