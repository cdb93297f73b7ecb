// The weight of a Linear as a backend keeps it: repacked once at load into the backend's panels, in its own format.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "ops/input_form.h"
#include "tensor/dtype.h"

namespace quire::ops {

class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  virtual DType dtype() const = 0;
  virtual int64_t rows() const = 0;     // N, output features
  virtual int64_t columns() const = 0;  // K, input features
  virtual int64_t bytes() const = 0;    // memory held

  // What rows are made into before they are multiplied by it: by the backend, where it forms_inputs().
  const InputForm& input() const { return input_; }
  void set_input(InputForm form) { input_ = std::move(form); }

 private:
  InputForm input_;
};

// Weights that one product takes together: the experts of a mixture, or the heads of an attention. They must outlive
// it.
class PackedGroup {
 public:
  // REQUIRES: at least one; all of one shape and dtype, of the backend that makes the group.
  explicit PackedGroup(std::vector<const PackedMatrix*> matrices);
  virtual ~PackedGroup() = default;
  PackedGroup(const PackedGroup&) = delete;
  PackedGroup& operator=(const PackedGroup&) = delete;

  int32_t size() const { return static_cast<int32_t>(matrices_.size()); }
  const PackedMatrix& operator[](int32_t i) const { return *matrices_[static_cast<size_t>(i)]; }

 private:
  std::vector<const PackedMatrix*> matrices_;
};

}  // namespace quire::ops
