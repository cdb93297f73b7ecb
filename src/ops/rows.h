// Numbers that one op hands to the next: float32, or F16 or BF16 where the product that reads them would round them to
// that anyway (Backend::input_dtype()). Rows are as far apart as the op's arguments say, in numbers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "tensor/dtype.h"

namespace quire::ops {

struct Rows {
  const void* data = nullptr;
  DType dtype = DType::kF32;

  Rows() = default;
  Rows(const float* floats) : data(floats) {}
  Rows(const void* numbers, DType type) : data(numbers), dtype(type) {}

  // REQUIRES: they are float32.
  const float* floats() const {
    QUIRE_CHECK(dtype == DType::kF32);
    return static_cast<const float*>(data);
  }
  // From number `index` on.
  Rows from(int64_t index) const { return {static_cast<const uint8_t*>(data) + row_bytes(dtype, index), dtype}; }
};

// Rows to be written.
struct OutRows {
  void* data = nullptr;
  DType dtype = DType::kF32;

  OutRows() = default;
  OutRows(float* floats) : data(floats) {}
  OutRows(void* numbers, DType type) : data(numbers), dtype(type) {}
  operator Rows() const { return {data, dtype}; }

  float* floats() const {
    QUIRE_CHECK(dtype == DType::kF32);
    return static_cast<float*>(data);
  }
  OutRows from(int64_t index) const { return {static_cast<uint8_t*>(data) + row_bytes(dtype, index), dtype}; }
};

// F32, F16, BF16.
constexpr bool is_row_format(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

}  // namespace quire::ops
